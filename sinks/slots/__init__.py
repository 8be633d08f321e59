"""Tasks of slots, whatever the sink: where batches are read from, tries, what is left out."""
