"""Pure: bytes of record batches, Fetch and Produce. No I/O, no clock, no Spark."""
