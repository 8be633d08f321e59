"""Driver, for the cli: a file that is written as a whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from shallow_mirror.errors import ConfigError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, in place of one that exists. Raises ConfigError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"cannot write the report to {path}: {error.strerror or error}") from error
