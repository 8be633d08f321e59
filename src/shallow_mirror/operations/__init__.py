"""Operator commands that read or change a mirror: status, recover, redo and the quarantine."""
