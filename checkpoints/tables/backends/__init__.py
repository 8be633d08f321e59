"""The backends of the tables: deltalake without a JVM, and Delta on Spark."""
