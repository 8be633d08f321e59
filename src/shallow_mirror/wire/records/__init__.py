"""Batches that have to be opened: decompression, records, rebuilding and conversion from older formats."""
