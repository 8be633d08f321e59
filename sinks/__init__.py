"""The foreachBatch sink: slots, Kafka transactions, decision, recovery."""

if __name__ != "shallow_mirror.sinks":
    raise ImportError("import shallow_mirror.sinks, not sinks: the folder is part of the shallow_mirror package")
