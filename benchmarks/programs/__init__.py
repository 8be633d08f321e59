"""Programs that peers run in a process of their own."""
