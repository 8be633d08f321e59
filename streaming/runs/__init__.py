"""Runs: a mirror, an archive, a restore, and what they prepare."""
