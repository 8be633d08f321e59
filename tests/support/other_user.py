"""A user without the rights of root, for tests of permissions: root may read and write everything."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NOBODY = 65_534


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Run the block as a user who owns nothing, if this is root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(_NOBODY)
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)
