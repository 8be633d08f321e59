from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.fakes.changes import error
from tests.support.console_entry import Ended, console
from tests.support.record_batches import batch
from tests.verify.mirrored import Mirrored

pytestmark = pytest.mark.thorough


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Mirrored]:
    with Mirrored(tmp_path) as mirrored:
        mirrored.mirror(batch(0, 10), batch(10, 5))
        (tmp_path / "mirror.yaml").write_text(yaml.safe_dump(mirrored.document), encoding="utf-8")
        yield mirrored


def verified(folder: Path, *options: str) -> Ended:
    return console("verify", str(folder / "mirror.yaml"), *options)


@pytest.mark.parametrize("options", [(), ("--deep",), ("--topic", "orders"), ("--from-start",)], ids=str)
def test_an_equal_copy_is_0_and_nothing_is_imported_that_takes_long(
    copied: Mirrored, tmp_path: Path, options: tuple[str, ...]
) -> None:
    ended = verified(tmp_path, *options)
    assert (ended.code, ended.lines[0], ended.slow_imports, ended.stderr) == (0, "no difference", "[]", "")
    assert ended.lines[1].startswith("15 records in 1 partition of 1 topic found equal")


def test_a_difference_is_1_and_is_reported_with_its_offsets_also_as_json(copied: Mirrored, tmp_path: Path) -> None:
    copied.append(batch(0, 3))
    ended = verified(tmp_path)
    assert (ended.code, ended.lines[0]) == (1, "1 difference: 1 not in map")
    assert "  not in map: target orders-0 offsets 16 to 18: readers of the target see it" in ended.lines[-1]
    ended = verified(tmp_path, "--json")
    document = json.loads(ended.lines[0])
    assert (ended.code, document["is_equal"], document["difference_counts"]) == (1, False, {"not in map": 1})
    assert (document["differences"][0]["target_start"], document["differences"][0]["target_end"]) == (16, 19)


def test_a_topic_that_the_source_hides_is_2_and_nothing_is_called_equal(copied: Mirrored, tmp_path: Path) -> None:
    copied.source.change_always("Metadata", error(29, ("orders", -1)))
    ended = verified(tmp_path, "--json")
    what = "source cluster east: topic orders: TOPIC_AUTHORIZATION_FAILED: grant Read on topic orders"
    assert (ended.code, ended.lines, ended.stderr) == (2, [], f"ConfigError: {what}\n")


def test_a_topic_that_was_never_mirrored_is_2(copied: Mirrored, tmp_path: Path) -> None:
    ended = verified(tmp_path, "--topic", "other")
    assert (ended.code, ended.stderr) == (2, "ConfigError: topic other is not in the offset map: it was never mirrored\n")
