"""Descriptions of topics beside the objects: damaged and missing ones are found, and stored again from the table."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import ArchivedTopics, TopicDescription
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ArchiveFormatError, ConfigError
from shallow_mirror.operations.archive.findings import FindingKind
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.sinks.archive import topic_objects
from shallow_mirror.sinks.archive.topic_objects import TopicObjects

pytestmark = pytest.mark.thorough


def description(partitions: int, topic: str = "orders") -> TopicDescription:
    return TopicDescription(topic=topic, topic_id=f"id of {topic}", partitions=partitions, configs={"retention.ms": "7"})


class Described:
    """An archive that was described three times: with 1 partition, with 2, and with 1 again; payments the second time."""

    def __init__(self, folder: Path) -> None:
        self.archive = ArchiveOfTest(archive_config(folder))
        self.archive.archive({ORDERS: [batch(0, 10)]})
        self.table = ArchivedTopics.of(TableStorage(self.archive.config.tables))
        for number, topics in enumerate(
            [[description(1)], [description(2), description(1, "payments")], [description(1)]], start=1
        ):
            self.run(topics, at_ms=NOW_MS + number)

    def run(self, topics: list[TopicDescription], at_ms: int) -> None:
        """Describe topics as a run does when it starts."""
        self.objects.record(topics, at_ms=at_ms, history=self.table.seen)
        self.table.record(topics, run_epoch=1, micro_batch=1, at_ms=at_ms)

    @property
    def objects(self) -> TopicObjects:
        return TopicObjects(self.archive.store, self.archive.owner.map_id)

    @property
    def files(self) -> list[Path]:
        return sorted(Path(self.archive.config.objects).rglob("topics/*.json"))

    def findings(self) -> dict[FindingKind, list[str]]:
        named = verify_archive(self.archive.config, is_deep=True).findings.named
        return {kind: [finding.sentence() for finding in of_kind] for kind, of_kind in named.items()}

    def rebuilt(self, folder: Path) -> dict[int, int]:
        """Return the partitions of orders by the time at which they were seen, in a rebuilt table."""
        rebuild(self.archive.config, str(folder))
        history = ArchivedTopics.of(TableStorage(str(folder))).seen()
        return {seen.seen_at_ms - NOW_MS: seen.description.partitions for seen in history if seen.description.topic == "orders"}


@pytest.fixture
def described(tmp_path: Path) -> Described:
    return Described(tmp_path)


def test_what_was_stored_is_read_in_the_order_in_which_it_was_seen(described: Described, tmp_path: Path) -> None:
    assert [[topic.partitions for topic in seen.topics] for seen in described.objects.read()] == [[1], [2, 1], [1]]
    assert described.findings() == {}
    assert described.rebuilt(tmp_path / "new") == {1: 1, 2: 2, 3: 1}
    described.run([description(1)], at_ms=NOW_MS + 9)
    assert len(described.files) == 3


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "emptied"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_description_is_found_and_stored_again_by_the_next_run(
    described: Described, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str, number: int
) -> None:
    file = described.files[number]
    content = file.read_bytes()
    flipped = content.replace(b'"partitions": ', b'"partitions": 3')
    file.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "flipped": flipped, "emptied": b"{}"}[damage])
    name = file.relative_to(described.archive.config.objects).as_posix()
    found = described.findings()
    (problem,) = found[FindingKind.DAMAGED]
    assert problem.startswith(f"{name}: it is no description of topics: ")
    assert "the next `shallow-mirror archive run` stores it again" in problem
    missing = found[FindingKind.MISSING]
    assert len(missing) == (2 if number == 1 else 1)
    assert all("no object describes" in sentence for sentence in missing)
    with pytest.raises(ArchiveFormatError, match="Restore it from a copy or a former version, or move it out of the store"):
        rebuild(described.archive.config, str(tmp_path / "new"))

    with caplog.at_level(logging.WARNING, topic_objects.__name__):
        described.run([description(1)], at_ms=NOW_MS + 9)
    assert f"object {name}: it is no description of topics" in caplog.text
    assert described.findings() == {
        FindingKind.REPLACED: [f"{name}: it is no description of topics; what it held was stored again"]
    }
    assert verify_archive(described.archive.config, is_deep=True).is_equal
    assert described.rebuilt(tmp_path / "new") == {1: 1, 2: 2, 3: 1}
    count = len(described.files)
    described.run([description(1)], at_ms=NOW_MS + 10)
    assert len(described.files) == count


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_description_is_found_and_stored_again_by_the_next_run(
    described: Described, tmp_path: Path, number: int
) -> None:
    described.files[number].unlink()
    found = described.findings()
    assert found.keys() == {FindingKind.MISSING}
    assert "no object describes orders (topic id id of orders) as it was at 2023-11-14" in "".join(found[FindingKind.MISSING])
    described.run([description(1)], at_ms=NOW_MS + 9)
    assert described.findings() == {}
    assert described.rebuilt(tmp_path / "new") == {1: 1, 2: 2, 3: 1}


def test_every_flipped_bit_is_found_or_changes_no_description(described: Described) -> None:
    file, expected = described.files[1], described.objects.read()[1]
    content = file.read_bytes()
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            seen = topic_objects._parse("name", bytes(damaged))
        except (ArchiveFormatError, ConfigError):
            continue
        assert seen == expected


def test_an_object_without_a_checksum_is_read(described: Described) -> None:
    file = described.files[0]
    document = json.loads(file.read_bytes())
    for field in ("minor", "replaces", "crc32c"):
        del document[field]
    file.write_text(json.dumps(document))
    assert described.findings() == {}


def test_an_object_that_was_stored_before_a_crash_and_is_in_no_row_is_no_difference(described: Described) -> None:
    described.objects.record([description(5)], at_ms=NOW_MS + 4, history=described.table.seen)
    assert described.findings() == {}
