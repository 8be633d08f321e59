"""The page of a verification as text: bounded, escaped, and with what was not covered; also of a restore."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.report.contents import EVIL
from tests.support.html_elements import Elements

from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.report.evidence import evidence_document, result_of
from shallow_mirror.report.evidence_page import DIFFERENCES_SHOWN, PARTITIONS_SHOWN, evidence_page
from shallow_mirror.types import OffsetRange, SourcePartition, TargetPartition, TopicPartition
from shallow_mirror.verify import Difference, DifferenceKind, Unchecked, VerifyReport
from shallow_mirror.verify.partition_results import PartitionResult

BEGAN, ENDED = datetime(2026, 11, 27, 2, tzinfo=UTC), datetime(2026, 11, 27, 3, 12, tzinfo=UTC)
CLIENT = {"bootstrap.servers": "kafka:9092"}


def partition(number: int, topic: str = "orders") -> PartitionResult:
    return PartitionResult(
        source=SourcePartition(topic, "id", number),
        target=TargetPartition(topic, "id", number),
        source_range=OffsetRange(0, 1_500),
        target_range=None,
        batch_count=3,
        opened_batch_count=1,
        record_count=1_500,
        source_bytes=10,
        target_bytes=10,
        unchecked={},
        difference_counts={},
        digest=None if number else "a" * 64,
    )


def report(**changes: Any) -> VerifyReport:
    fields: dict[str, Any] = {
        "mirror": "m", "audit_id": "a", "topics": ("orders",), "is_deep": False, "continues": False, "seconds": 1.0, "partition_count": 1,
        "batch_count": 3, "opened_batch_count": 1, "record_count": 1_500, "source_bytes": 10, "target_bytes": 10, "unchecked": {},
        "difference_counts": {}, "differences": (), "partitions": (partition(0),),
    }  # fmt: skip
    return VerifyReport(**(fields | changes))


def difference(topic: str) -> Difference:
    place = TopicPartition(topic, 0)
    return Difference(
        kind=DifferenceKind.CHANGED, source=place, target=place, source_start=1, source_end=2, reason="the key differs"
    )


def mirror_file(folder: Path) -> MirrorConfig:
    document = {
        "mirror": "m",
        "source": {"alias": "east", "client": CLIENT},
        "target": {"alias": "west", "client": CLIENT},
        "topics": {"include": ["x"]},
        "tables": "t",
    }
    return MirrorConfig.from_document(document, folder=folder)


def page_of(config: MirrorConfig | RestoreConfig, verified: VerifyReport) -> str:
    document = evidence_document(config, verified, None, BEGAN, ENDED, None)
    return evidence_page(document, "kept.json", "c" * 64)


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({}, "equal"),
        ({"uncovered": ("orders-1: nothing of it is copied",)}, "not everything covered"),
        ({"stopped_by": "RetriableError: gone", "uncovered": ("x",)}, "stopped before the end"),
        ({"stopped_by": "RetriableError: gone", "difference_counts": {DifferenceKind.EXTRA: 1}}, "different"),
    ],
    ids=str,
)
def test_the_result_is_the_worst_of_what_was_found(tmp_path: Path, changes: dict[str, Any], result: str) -> None:
    verified = report(**changes)
    assert result_of(verified) == result
    assert verified.is_equal == (result == "equal")
    text = page_of(mirror_file(tmp_path), verified)
    assert f"Result: {result}</b>" in text
    assert ("Stopped before the end by RetriableError: gone" in text) == ("stopped_by" in changes)


def test_the_page_is_bounded_and_counts_the_rest(tmp_path: Path) -> None:
    many = report(
        partitions=tuple(partition(number) for number in range(PARTITIONS_SHOWN + 5)),
        differences=(difference("orders"),) * 1_000,
        difference_counts={DifferenceKind.CHANGED: 4_000},
    )
    text = page_of(mirror_file(tmp_path), many)
    assert text.count("and 5 more in the JSON file") == 2
    assert f"and {4_000 - DIFFERENCES_SHOWN:,} more in the JSON file" in text
    assert len(text) < 600_000


def test_names_are_text_whatever_they_hold(tmp_path: Path) -> None:
    verified = report(
        partitions=(partition(0, EVIL),),
        differences=(difference(EVIL),),
        difference_counts={DifferenceKind.CHANGED: 1},
        uncovered=(EVIL,),
        closed=(EVIL,),
        unchecked={Unchecked.SOURCE_DELETED: 4},
        stopped_by=EVIL,
    )
    text = page_of(mirror_file(tmp_path), verified)
    elements = Elements(text)
    assert not {"script", "link", "img", "iframe"} & set(elements.names)
    assert not [name for name, _ in elements.attributes if name.startswith("on")]
    assert text.count("&lt;script&gt;") >= 6
    assert f"4 source offsets {Unchecked.SOURCE_DELETED.value}" in text


def test_the_source_of_a_restore_is_an_archive(tmp_path: Path) -> None:
    document = {
        "restore": "back",
        "archive": {"objects": "objects", "tables": "archive"},
        "target": {"alias": "west", "client": CLIENT},
        "tables": "t",
    }
    config = RestoreConfig.from_document(document, folder=tmp_path)
    text = page_of(config, report(source_cluster_id="east-id", target_cluster_id="west-id"))
    assert "verification of a restore" in text
    assert f"archive {tmp_path}/archive (objects: {tmp_path}/objects) of the cluster with id east-id" in text
    assert "west: cluster id west-id, kafka:9092" in text
