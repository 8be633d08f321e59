"""Tasks of slots, for any sink: sources of batches, tries, left out ranges."""
