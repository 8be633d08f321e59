"""Target partitions whose records keep their offsets: what is agreed, what is checked before anything is written."""
