"""What a run reports: logs, metrics, health, lag."""
