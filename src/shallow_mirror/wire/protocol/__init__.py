"""Requests and responses of brokers, and SCRAM messages, as bytes."""
