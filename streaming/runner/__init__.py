"""The running mirror: session, query, supervisor, monitors and what they report."""
