"""Moving topics, groups and writers to another cluster, step by step, and back. Driver; starts no JVM."""
