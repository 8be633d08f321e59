"""Hooks: commands and HTTP calls of others at the steps of a migration or fail-over. Driver."""
