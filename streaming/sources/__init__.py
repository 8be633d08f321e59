"""The Spark data sources: kafka-batches, which is public, and the planned ranges of a mirror."""
