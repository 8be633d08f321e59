"""The Kafka sink: Kafka transactions on the target, decided by a commit to the offset map."""
