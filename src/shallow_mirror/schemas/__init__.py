"""Schemas of a Schema Registry with the Confluent API, and those that the registry of the target lacks."""
