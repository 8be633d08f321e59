from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.audit.mirrored import Mirrored
from tests.record_batches import batch

pytestmark = pytest.mark.thorough


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Mirrored]:
    with Mirrored(tmp_path) as mirrored:
        mirrored.mirror(batch(0, 10), batch(10, 5))
        (tmp_path / "mirror.yaml").write_text(yaml.safe_dump(mirrored.document), encoding="utf-8")
        yield mirrored


_ENTRY = """
import atexit, sys
from shallow_mirror.cli import main
atexit.register(lambda: print([name for name in ("pandas", "pyspark", "confluent_kafka") if name in sys.modules]))
main()
"""


def verified(folder: Path, *options: str) -> tuple[int, list[str], str]:
    """Exit code, lines of standard output, standard error, of the console entry point in a process of its own."""
    command = [sys.executable, "-c", _ENTRY, "verify", str(folder / "mirror.yaml"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return ended.returncode, ended.stdout.splitlines(), ended.stderr


@pytest.mark.parametrize("options", [(), ("--deep",), ("--topic", "orders"), ("--from-start",)], ids=str)
def test_an_equal_copy_is_0_and_nothing_is_imported_that_takes_long(
    copied: Mirrored, tmp_path: Path, options: tuple[str, ...]
) -> None:
    code, lines, said = verified(tmp_path, *options)
    assert (code, lines[0], lines[-1], said) == (0, "no difference", "[]", "")
    assert lines[1].startswith("15 records in 1 partitions of 1 topics are equal")


def test_a_difference_is_1_and_is_told_with_its_place_also_to_machines(copied: Mirrored, tmp_path: Path) -> None:
    copied.append(batch(0, 3))
    code, lines, _ = verified(tmp_path)
    assert (code, lines[0]) == (1, "1 difference: 1 not in map")
    assert "  not in map: target orders-0 offsets 16 to 18: readers of the target see it" in lines[-2]
    code, lines, _ = verified(tmp_path, "--json")
    document = json.loads(lines[0])
    assert (code, document["is_equal"], document["difference_counts"]) == (1, False, {"not in map": 1})
    assert (document["differences"][0]["target_start"], document["differences"][0]["target_end"]) == (16, 19)


def test_a_topic_that_was_never_mirrored_is_2(copied: Mirrored, tmp_path: Path) -> None:
    code, _, said = verified(tmp_path, "--topic", "other")
    assert (code, said) == (2, "ConfigError: topic other is not in the offset map: it was never mirrored\n")
