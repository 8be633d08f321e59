"""A dry run says what a restore would create, copy and rebuild, and what prevents it. It writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support import restore_runs
from tests.support.archives import NOW_MS, ORDERS, PAYMENTS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch, marker

from shallow_mirror.checkpoints.ledger import ArchivedTopics, TopicDescription
from shallow_mirror.checkpoints.logs import GroupPosition, GroupSyncPass, record_pass
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.cli import main
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.restore.dry_run import RestoreDryRun, dry_run

pytestmark = pytest.mark.thorough

OTHER = ORDERS._replace(partition=1)


class Archived:
    """An archive of two partitions of `orders`, two objects, and the cluster to restore into."""

    def __init__(self, folder: Path, target: StrictCluster) -> None:
        self.folder, self.target = folder, target
        self.archive = ArchiveOfTest(archive_config(folder))
        self.archive.archive({ORDERS: [batch(0, 10, timestamp=1_000), batch(10, 10, timestamp=2_000)], OTHER: [batch(0, 5)]})
        self.archive.archive({ORDERS: [batch(20, 10, timestamp=3_000)]})
        topics = ArchivedTopics.of(TableStorage(self.archive.config.table_location))
        configs = {"retention.ms": "77", "cleanup.policy": "delete"}
        description = TopicDescription(topic="orders", topic_id=ORDERS.topic_id, partitions=2, configs=configs)
        topics.record([description], run_epoch=1, micro_batch=1, at_ms=NOW_MS)

    def document(self, **settings: Any) -> dict[str, Any]:
        return restore_runs.document(self.archive.config, self.target.bootstrap, **settings)

    def dry_run(self, **settings: Any) -> RestoreDryRun:
        return dry_run(restore_runs.config(self.folder, self.archive.config, self.target.bootstrap, **settings))


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[Archived]:
    with StrictCluster(cluster_id="west-id") as target:
        target.broker_configs |= {"producer.id.expiration.ms": "86400000", "connections.max.idle.ms": "600000"}
        yield Archived(tmp_path, target)


def test_topics_ranges_bytes_and_micro_batches_are_reported_and_nothing_is_written(archived: Archived) -> None:
    report = archived.dry_run()
    assert report.is_fine
    (topic,) = report.topics
    assert (topic.target, topic.partitions, topic.exists) == ("east.orders", 2, False)
    assert topic.created_with is not None
    assert (topic.created_with["retention.ms"], topic.paused["retention.ms"]) == ("-1", "77")
    assert topic.created_with["compression.type"] == "producer"
    ranges = [(each.partition, each.position, each.end, each.record_count, each.is_exact) for each in report.partitions]
    assert ranges == [(0, 0, 30, 30, True), (1, 0, 5, 5, True)]
    assert report.size_bytes == len(batch(0, 10)) * 3 + len(batch(0, 5))
    assert (report.object_count, report.micro_batches) == (2, 1)
    assert report.sentences()[-1].startswith("checked without a problem")
    assert not (archived.folder / "restore").exists()
    assert archived.dry_run() == report


def test_a_cut_inside_a_batch_is_named_with_the_batch_that_will_be_rebuilt(archived: Archived) -> None:
    report = archived.dry_run(until={"offsets": {"orders": {0: 14, 1: 5}}})
    first, second = report.partitions
    assert [(each.base_offset, each.end_offset, each.start, each.end) for each in first.rebuilt] == [(10, 20, 10, 14)]
    assert (first.end, first.is_exact, second.rebuilt) == (14, False, [])
    assert "the batch at 10 will be rebuilt" in "\n".join(report.sentences())
    assert report.object_count == 1


def test_a_partition_with_several_lineages_is_named_with_what_is_not_restored(archived: Archived) -> None:
    archived.archive.begin_lineage(ORDERS, 25, 3)
    archived.archive.archive({ORDERS: [batch(25, 10)]})
    report = archived.dry_run()
    assert [(each.lineage, each.end, each.is_exact) for each in report.partitions] == [(1, 35, False), (0, 5, True)]
    assert "orders-0: the source's log was truncated" in "\n".join(report.sentences())
    (others,) = json.loads(json.dumps(report.document()))["other_lineages"]
    assert (others["restored"], others["record_counts"]) == (1, {"0": 10})
    former = archived.dry_run(until={"lineage": 0})
    assert [(each.lineage, each.end, each.record_count) for each in former.partitions] == [(0, 30, 30), (0, 5, 5)]


def test_a_target_topic_that_holds_records_is_refused_with_the_remedy(archived: Archived) -> None:
    keeps: dict[str, Any] = {"retention.ms": "-1"}
    archived.target.create_topic("east.orders", 2, **keeps)
    assert archived.dry_run().is_fine
    archived.target.seed(("east.orders", 1), batch(0, 1))
    report = archived.dry_run()
    assert not report.is_fine
    ((problem,),) = [topic.problems for topic in report.topics]
    assert "target topic east.orders (for orders) holds records that this restore did not write" in problem


def test_missing_and_short_objects_are_named(archived: Archived) -> None:
    first, second = sorted((archived.folder / "objects").rglob("*.batches"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:10])
    report = archived.dry_run()
    assert not report.is_fine
    missing, short = report.damaged_objects
    assert first.name in missing
    assert "is missing" in missing
    assert "has 10 bytes" in short


def test_the_command_prints_it_and_its_options_override_the_cut_of_the_file(
    archived: Archived, capsys: pytest.CaptureFixture[str]
) -> None:
    file = archived.folder / "restore.yaml"
    file.write_text(json.dumps(archived.document(until={"time": "2026-05-01T12:00:00Z"})))
    with pytest.raises(SystemExit) as ended:
        main(["restore", str(file), "--dry-run", "--json", "--until", "1970-01-01T00:00:02Z"])
    assert ended.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert document["is_fine"]
    assert [each["end"] for each in document["partitions"]] == [20, 5]
    with pytest.raises(SystemExit) as ended:
        main(["restore", str(file), "--dry-run", "--until", "1970-01-01T00:00:02Z", "--at-decision", "1"])
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        main(["restore", str(file), "--dry-run", "--until", "yesterday"])
    assert ended.value.code == 2
    assert "--until" in capsys.readouterr().err


def test_groups_are_named_with_the_positions_that_will_be_committed(archived: Archived) -> None:
    assert "none will be committed: the archive has recorded none" in archived.dry_run().groups_note
    tables = TableStorage(archived.archive.config.table_location).best_effort_tables()
    observed_at = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    positions = [
        GroupPosition(group="app", source=ORDERS, offset=12),
        GroupPosition(group="app", source=OTHER, offset=99),
        GroupPosition(group="other", source=ORDERS, offset=3),
        GroupPosition(group="elsewhere", source=PAYMENTS, offset=3),
    ]
    record_pass(tables, GroupSyncPass(observed_at=observed_at, is_whole=True), positions)
    report = archived.dry_run(groups={"exclude": ["other"]})
    (group,) = report.groups
    assert (group.group, group.offsets, group.state) == ("app", {"orders-0": 12, "orders-1": 5}, "not there")
    assert "group app: orders-0 at 12, orders-1 at 5; at the target it is not there" in report.sentences()
    assert "offsets of 1 group will be committed once everything is restored" in "\n".join(report.sentences())
    assert json.loads(json.dumps(report.document()))["groups"][0]["offsets"] == {"orders-0": 12, "orders-1": 5}
    assert archived.dry_run(groups={"commit": "off"}).groups_note == "no offsets will be committed (groups.commit: off)"


PRESERVED: dict[str, Any] = {"topics": {"offsets": {".*": "preserved"}}}


def test_preserved_offsets_are_reported_with_their_fillers(archived: Archived, capsys: pytest.CaptureFixture[str]) -> None:
    archived.archive.archive(
        {
            ORDERS: [
                batch(30, 2),
                batch(32, 4, attributes=0x10, producer_id=9, producer_epoch=0),
                marker(36, 0, 9),
                batch(37, deltas=[0, 5]),
            ]
        },
        aborted={ORDERS: [(9, 32)]},
    )
    report = archived.dry_run(**PRESERVED, until={"offsets": {"orders": {0: 43, 1: 4}}})
    (topic,) = report.topics
    assert (topic.offsets, report.is_fine) == ("preserved", True)
    assert topic.created_with is not None
    assert topic.created_with["unclean.leader.election.enable"] == "false"
    first, second = report.partitions
    assert first.fillers is not None
    assert second.fillers is not None
    assert (first.fillers.leading, first.fillers.least, first.fillers.most) == (0, 5, 9)
    assert (second.fillers.least, second.fillers.most) == (0, 0)
    text = "\n".join(report.sentences())
    assert "5 to 9 fillers for offsets without a record (99 bytes)" in text
    assert "offsets preserved" in text
    assert json.loads(json.dumps(report.document()))["partitions"][0]["fillers"]["most"] == 9
    file = archived.folder / "restore.yaml"
    file.write_text(json.dumps(archived.document()))
    for offsets, code in (("preserved", 0), ("translated", 0), ("kept", 2)):
        with pytest.raises(SystemExit) as ended:
            main(["restore", str(file), "--dry-run", "--offsets", offsets])
        assert ended.value.code == code
        said = capsys.readouterr()
        assert (
            f"offsets {offsets}" in said.out if code == 0 else "--offsets: kept is neither preserved nor translated" in said.err
        )


def test_why_a_topic_cannot_be_preserved_is_reported(archived: Archived) -> None:
    settings: dict[str, Any] = {"compression.type": "zstd", "cleanup.policy": "compact"}
    archived.target.create_topic("east.orders", 2, **settings)
    archived.target.seed(("east.orders", 1), batch(0, 1))
    archived.target.log("east.orders", 1).delete_records_before(1)
    report = archived.dry_run(**PRESERVED)
    assert not report.is_fine
    (topic,) = report.topics
    problems = "\n".join(topic.problems)
    assert "target partition east.orders-1 is not new (its log has offsets 1 to 1)" in problems
    assert "has compression.type=zstd" in problems
    assert "message.timestamp.after.max.ms" in problems
    assert "both have to be compacted, or neither" in problems
    assert archived.dry_run().topics[0].problems[0].startswith("target topic east.orders has compression.type=zstd")


def test_a_first_offset_above_the_limit_of_fillers_is_reported(archived: Archived) -> None:
    third = ORDERS._replace(partition=2)
    archived.archive.archive({third: [batch(2_000_000_000, 1)]}, positions={third: 2_000_000_000})
    report = archived.dry_run(**PRESERVED)
    assert any("orders-2 begins at offset 2,000,000,000" in problem for problem in report.topics[0].problems)
    assert report.partitions[2].fillers is not None
    assert report.partitions[2].fillers.leading == 2_000_000_000


def test_brokers_that_forget_producers_too_early_are_reported(archived: Archived) -> None:
    archived.target.broker_configs["producer.id.expiration.ms"] = "60000"
    report = archived.dry_run(**PRESERVED)
    assert not report.is_fine
    assert "producer.id.expiration.ms=60000" in "\n".join(report.problems)
    assert report.problems[0] in report.sentences()


def test_a_decision_that_the_archive_does_not_have_is_refused(archived: Archived) -> None:
    with pytest.raises(ConfigError, match=r"until\.decision: 99 is not in the archive"):
        archived.dry_run(until={"decision": 99})
