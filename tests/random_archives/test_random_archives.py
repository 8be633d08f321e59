"""Random archives, read and restored up to random cuts: the package, the documented reader and the truth agree.

`make faults FAULTS="restore --archives 1000"` does the same for as long as wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.random_archives.restore_target import RestoreTarget
from tests.random_archives.rounds import check_archive

pytestmark = pytest.mark.thorough

SEEDS = (3, 11, 22, 34, *(pytest.param(seed, marks=pytest.mark.long) for seed in (7, 18, 58, 101)))


@pytest.fixture(scope="module")
def target() -> Iterator[RestoreTarget]:
    with RestoreTarget() as opened:
        yield opened


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_archive_is_read_and_restored_as_its_source_was(seed: int, target: RestoreTarget, tmp_path: Path) -> None:
    history, found = check_archive(seed, tmp_path / "archive", target, cuts=3, restores=1)
    assert not found.differences, "\n".join([*history.script, *found.differences])
    assert found.cuts > 0


def test_a_seed_makes_the_same_archive_again(tmp_path: Path) -> None:
    from tests.random_archives.histories import ArchiveHistory

    scripts = []
    for name in ("first", "second"):
        history = ArchiveHistory(5, tmp_path / name)
        history.run()
        scripts.append(history.script)
    assert scripts[0] == scripts[1]
