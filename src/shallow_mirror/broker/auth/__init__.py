"""Client properties, secrets, TLS and SASL: authenticated connections."""
