module shallow-mirror/benchmarks/relay

go 1.24
