"""What is decided: the offset map, the segments of an archive, and the commits of their owner."""
