"""Writers of slots: the Kafka transaction of a task, and batches with preserved offsets."""
