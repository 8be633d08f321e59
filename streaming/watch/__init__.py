"""Reports of a run: logs, metrics, health, lag."""
