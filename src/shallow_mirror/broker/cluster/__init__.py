"""One Kafka cluster: metadata, leaders, coordinators and log end offsets."""
