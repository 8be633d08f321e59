"""The comparison with other ways to copy between clusters: `make bench`."""
