"""The offset map and the other Delta tables."""

if __name__ != "shallow_mirror.checkpoints":
    raise ImportError("import shallow_mirror.checkpoints, not checkpoints: the folder is part of the shallow_mirror package")
