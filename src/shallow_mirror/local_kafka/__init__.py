"""Real single-node KRaft brokers from jars, for demo, tests, benchmarks and trying by hand."""
