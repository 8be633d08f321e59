"""Consumer groups: their translated offsets on the other cluster, and committing them there. Driver and reading commands."""
