"""Connections to brokers: the only place with sockets."""
