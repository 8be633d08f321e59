"""Writing of raw record batches with Produce requests and transactions."""
