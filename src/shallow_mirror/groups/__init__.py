"""Consumer groups: where those of one cluster go on at the other, and bringing them there. Driver and reading commands."""
