"""Reading of raw record batches with Fetch requests."""
