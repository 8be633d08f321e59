"""Schemas of a Schema Registry with the Confluent API, and what of them the registry of the target lacks."""
