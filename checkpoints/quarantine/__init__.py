"""Batches that were set aside instead of copied: their table, and which of them are still in quarantine."""
