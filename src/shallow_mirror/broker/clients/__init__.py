"""BatchConsumer and BatchProducer: record batches without Spark."""
