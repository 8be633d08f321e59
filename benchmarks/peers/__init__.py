"""Those who copy a topic from one cluster to the other, one file each."""
