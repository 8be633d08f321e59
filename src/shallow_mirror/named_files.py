"""Errors of writes to a file with the name of the file, which those of Python's `write` and `close` lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Raise an OSError that has a number and names no file (a full disk) as one that names `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
