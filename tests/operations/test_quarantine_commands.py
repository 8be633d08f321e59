"""`quarantine list`, `export` and `retry` between two strict clusters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.fakes.changes import AS_IT_SHOULD, error
from tests.support.mirror_runs import CrashAt, CrashError
from tests.support.record_batches import numbered_batch
from tests.verify.mirrored import TOPIC, Mirrored, flipped

from shallow_mirror.broker import write_group_note
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.logs import QuarantinedBatch, QuarantineTable
from shallow_mirror.checkpoints.logs.quarantine import Quarantine
from shallow_mirror.checkpoints.logs.quarantined_batches import QUARANTINE_TABLE
from shallow_mirror.checkpoints.logs.topics import Controls, TopicIncarnation
from shallow_mirror.checkpoints.logs.topics.controls import CONTROLS_TABLE
from shallow_mirror.checkpoints.rows.schema import table_uri
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError, OffsetMapConflictError, OlderTablesError, RetriableError
from shallow_mirror.operations import quarantine_retry
from shallow_mirror.operations.quarantine import LINES_FILE, Selection, export, in_quarantine
from shallow_mirror.operations.quarantine_retry import retry
from shallow_mirror.sinks.kafka import NewestControl
from shallow_mirror.sinks.slots import slot_task
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.verify import Unchecked

pytestmark = pytest.mark.thorough

ALL = Selection()


@pytest.fixture
def mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirrored]:
    """Six batches of two records; the first, third, fourth and sixth are in quarantine, the last of them damaged."""
    monkeypatch.setattr(quarantine_retry, "START_MS", 10_000)
    with Mirrored(tmp_path) as made:
        made.poison = {0, 4, 6, 10}
        made.mirror(*(numbered_batch(n) for n in range(0, 10, 2)), flipped(numbered_batch(10), 64))
        yield made


def released(mirrored: Mirrored) -> list[tuple[int, bool]]:
    return [(entry.segment.source_start, entry.is_released) for entry in Quarantine.open(mirrored.config.tables).entries()]


def test_what_is_refused_again_stays_and_what_is_around_it_is_released_in_order(mirrored: Mirrored) -> None:
    before = OffsetMap.open(mirrored.config.tables).positions()
    mirrored.target.change("Produce", AS_IT_SHOULD, error(32))
    actual = retry(mirrored.config, ALL)
    assert (actual.batch_count, sum(segment.record_count for segment in actual.segments)) == (2, 4)
    assert [segment.source_start for segment in actual.refused] == [10, 4]
    assert "INVALID_TIMESTAMP" in actual.sentences()[2]
    assert released(mirrored) == [(0, True), (4, False), (6, True), (10, False)]
    report = mirrored.verify(is_deep=True)
    assert (report.is_equal, dict(report.unchecked)) == (True, {Unchecked.QUARANTINED: 4}), report.sentences()
    first, second = (segment.target_start for segment in actual.segments)
    assert first is not None
    assert second is not None
    assert first < second
    assert {source: position.offset for source, position in OffsetMap.open(mirrored.config.tables).positions().items()} == {
        source: position.offset for source, position in before.items()
    }
    assert [
        segment.source_start for segment in retry(mirrored.config, Selection(topic=TOPIC, partition=0, offset=5)).segments
    ] == [4]
    assert retry(mirrored.config, Selection(topic="other")).sentences() == ["released 0 batches with 0 records"]
    assert mirrored.verify(is_deep=True).is_equal


def test_batches_of_a_forgotten_topic_are_neither_listed_nor_released(mirrored: Mirrored) -> None:
    storage = TableStorage.of(mirrored.config.tables)
    assert len(in_quarantine(Quarantine.open(storage).entries(), storage)) == 4
    (source,) = OffsetMap.open(storage).positions()
    Controls.open(storage).forget([TopicIncarnation(source.topic, source.topic_id)], [])
    assert in_quarantine(Quarantine.open(storage).entries(), storage) == []
    assert retry(mirrored.config, ALL).sentences() == ["released 0 batches with 0 records"]
    assert [is_released for _, is_released in released(mirrored)] == [False] * 4


@pytest.mark.parametrize(
    "point", ["Settle", "TakeDecision", "task.produced", "RunSlots", "RefuseHangingTxns", "Decide", "EndTxn", "AwaitVisible"]
)
def test_wherever_a_retry_crashes_the_next_one_makes_it_whole(mirrored: Mirrored, point: str) -> None:
    with pytest.raises(CrashError):
        retry(mirrored.config, ALL, observer=CrashAt(point))
    retry(mirrored.config, ALL, takes_over=True)
    assert released(mirrored) == [(0, True), (4, True), (6, True), (10, False)]
    report = mirrored.verify(is_deep=True)
    assert (report.is_equal, dict(report.unchecked)) == (True, {Unchecked.QUARANTINED: 2}), report.sentences()


def test_a_target_that_fails_meanwhile_leaves_no_half_of_it(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_task, "SLOT_PATIENCE_MS", 50.0)
    mirrored.target.change_always("Produce", error(6))
    with pytest.raises(RetriableError):
        retry(mirrored.config, ALL)
    assert not any(is_released for _, is_released in released(mirrored))
    assert mirrored.verify().is_equal
    assert mirrored.target_log.last_stable_offset == mirrored.target_log.high_watermark


def test_a_run_that_is_alive_is_not_taken_over_by_accident(mirrored: Mirrored) -> None:
    owner = LedgerOwner.take_over(
        mirrored.config.tables, name="m", source_cluster_id=mirrored.source.cluster_id,
        target_cluster_id=mirrored.target.cluster_id, run=RunIdentity.of_this_process(), now_ms=lambda: 0,
    )  # fmt: skip
    owner.settle()
    with pytest.raises(ConfigError, match=rf"is running \(run 2, pid {owner.recorded().run.pid} .* stop it first.*--take-over"):
        retry(mirrored.config, ALL)
    assert retry(mirrored.config, ALL, takes_over=True).batch_count == 3


def test_an_offset_that_was_never_quarantined_is_said(mirrored: Mirrored) -> None:
    with pytest.raises(ConfigError, match=f"no batch was quarantined at offset 3 of {TOPIC}"):
        retry(mirrored.config, Selection(topic=TOPIC, offset=3))


def test_an_export_names_what_the_table_has_lost_and_writes_the_rest(mirrored: Mirrored, tmp_path: Path) -> None:
    DeltaTable(table_uri(mirrored.config.tables, QUARANTINE_TABLE)).delete("source_start = 4")
    quarantine = Quarantine.open(mirrored.config.tables)
    with pytest.raises(OffsetMapConflictError, match=r"offsets 4 to 5: .*deleted"):
        export(quarantine, quarantine.entries(), tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / LINES_FILE).read_text().splitlines()]
    assert [line["source_start"] for line in lines] == [0, 6, 10]
    assert (tmp_path / "out" / lines[1]["file"]).read_bytes() == numbered_batch(6)


def test_a_target_topic_that_was_created_again_gets_nothing(mirrored: Mirrored) -> None:
    mirrored.target.delete_topic(TOPIC)
    mirrored.target.create_topic(TOPIC)
    result = retry(mirrored.config, ALL)
    assert (result.batch_count, result.is_complete) == (0, False)
    assert (
        "4 batches: target topic orders was deleted, or deleted and created again, since they were quarantined"
        in result.sentences()[1]
    )
    assert not any(is_released for _, is_released in released(mirrored))


def test_batches_of_a_target_topic_that_is_gone_do_not_keep_others(mirrored: Mirrored) -> None:
    """Topics are released in the order of their names."""
    source, target = SourcePartition("apples", "A" * 22, 0), TargetPartition("apples", "B" * 22, 0)
    kept = QuarantinedBatch(
        source=source, source_start=0, source_end=2, target=target,
        error_name="INVALID_TIMESTAMP", rule="too old", remedy="Set a limit", batch=numbered_batch(0),
    )  # fmt: skip
    QuarantineTable.open(mirrored.config.tables).add([kept], mirrored.owner.next_decision())
    row = Segment(
        source=source, source_start=0, source_end=2, kind=SegmentKind.QUARANTINED, target=target,
        target_start=None, target_end=None, record_count=2, batch_count=1, size_bytes=len(kept.batch),
    )  # fmt: skip
    mirrored.owner.decide([DecidedSegment(row, None)], highest_slot=0)
    mirrored.owner.settle()
    result = retry(mirrored.config, ALL)
    assert (result.batch_count, result.gone_counts, result.is_complete) == (3, {"apples": 1}, False)
    assert "1 batch: target topic apples was deleted" in result.sentences()[-1]


def test_the_source_is_not_needed(mirrored: Mirrored) -> None:
    mirrored.source.__exit__(None, None, None)
    assert retry(mirrored.config, ALL).batch_count == 3


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "during the take-over"])
def test_nothing_is_released_to_the_copy_of_a_topic_that_was_handed_over(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    controls, before = Controls.open(mirrored.config.tables), mirrored.target_log.end_offset

    def hand_over(*_: object) -> None:
        controls.add("hand-over", [TOPIC])

    if is_late:
        monkeypatch.setattr(quarantine_retry, "_require_stopped", hand_over)
    else:
        hand_over()
    actual = retry(mirrored.config, ALL)
    assert (actual.batch_count, actual.is_complete, mirrored.target_log.end_offset) == (0, False, before)
    assert "still in quarantine: 4 batches of orders: a migration has handed it over" in actual.sentences()[1]
    assert not any(is_released for _, is_released in released(mirrored))
    controls.add("take-back", [TOPIC])
    monkeypatch.undo()
    assert retry(mirrored.config, ALL).batch_count == 3


def test_a_mirror_that_was_failed_over_releases_nothing_and_is_not_taken_over(mirrored: Mirrored) -> None:
    Controls.open(mirrored.config.tables).add("fail-over", [TOPIC])
    before = OffsetMap.open(mirrored.config.tables).recorded()
    with pytest.raises(ConfigError, match="mirror m was failed over"):
        retry(mirrored.config, ALL)
    assert OffsetMap.open(mirrored.config.tables).recorded() == before


def test_nothing_is_released_by_tables_that_lack_a_hand_over(mirrored: Mirrored) -> None:
    """The target has a note of its row."""
    controls = Controls.open(mirrored.config.tables)
    controls.add("hand-over", [TOPIC])
    map_id = OffsetMap.open(mirrored.config.tables).map_id
    write_group_note(mirrored.config.target.client, "m-origin", [TOPIC], "registered", timeout_s=5.0)
    assert NewestControl(mirrored.config.target.client, "m", map_id).note(controls.read().rows)
    shutil.rmtree(table_uri(mirrored.config.tables, CONTROLS_TABLE))
    for selection in (ALL, Selection(topic="other")):
        with pytest.raises(OlderTablesError, match="hand-over of orders"):
            retry(mirrored.config, selection)
    assert not any(is_released for _, is_released in released(mirrored))
