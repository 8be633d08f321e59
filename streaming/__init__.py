"""Planning, the Spark data sources and the running mirror."""

if __name__ != "shallow_mirror.streaming":
    raise ImportError("import shallow_mirror.streaming, not streaming: the folder is part of the shallow_mirror package")
