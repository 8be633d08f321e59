"""Real brokers from jars, alone or several in a cluster, for demo, tests, benchmarks and trying by hand."""
