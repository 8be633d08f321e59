"""Rehearsals of migrations: every step with topics, groups and mirrors of their own."""
