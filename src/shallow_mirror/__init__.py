"""Kafka-to-Kafka mirror that copies compressed record batches without opening them."""

__version__ = "0.1.0"
