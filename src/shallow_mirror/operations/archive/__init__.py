"""Operator commands on an archive."""
