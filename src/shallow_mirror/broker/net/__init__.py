"""Byte streams and framed requests to one broker."""
