"""Target partitions whose records keep their offsets: agreements, and checks before anything is written."""
