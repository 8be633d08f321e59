"""Quarantined batches: their table, and which of them are still in quarantine."""
