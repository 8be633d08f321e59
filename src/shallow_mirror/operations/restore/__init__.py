"""What is checked before a restore, and what ends it."""
