"""make demo: messy traffic, mirror, kill, resume, prove."""
