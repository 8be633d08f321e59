"""Rounds of random archives: one seed is one archive, with checks of it; the same seed makes the same archive again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.random_archives.checks import ArchiveChecks, Found
from tests.random_archives.documented_reader import FormatError
from tests.random_archives.histories import ArchiveHistory
from tests.random_archives.restore_target import RestoreTarget

from shallow_mirror.archive_reading import segment_reader
from shallow_mirror.errors import MirrorError
from shallow_mirror.sinks.archive import object_builder


@contextmanager
def small_sizes(seed: int) -> Iterator[None]:
    """Let rows have many runs, objects many parts, and readers many windows."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_builder, "INDEX_BYTES", chance.choice((50, 100, 300, 2_000)))
        patch.setattr(object_builder, "PART_BYTES", chance.choice((1, 300, 2_000, 100_000)))
        patch.setattr(segment_reader, "WINDOW_BYTES", chance.choice((1, 200, 1_000, 1_000_000)))
        yield


def check_archive(seed: int, folder: Path, target: RestoreTarget, *, cuts: int, restores: int) -> tuple[ArchiveHistory, Found]:
    """Make the archive of a seed in a new folder, and check it. The folder is removed unless something differs.

    An error that the package, or the documented reader, does not expect is a difference.
    """
    with small_sizes(seed):
        history = ArchiveHistory(seed, folder)
        try:
            history.run()
        finally:
            history.writer.close()
        checks = ArchiveChecks(history, folder, target, restores)
        try:
            checks.check_verify()
            checks.check_logs()
            checks.check_lookups()
            checks.check_commands()
            checks.check_cuts(cuts)
        except (MirrorError, FormatError) as error:
            checks.found.differences.append(f"{type(error).__name__}: {error}")
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    if not checks.found.differences:
        shutil.rmtree(folder)
    return history, checks.found
