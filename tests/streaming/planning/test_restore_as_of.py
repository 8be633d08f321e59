"""What was there at the cut of a restore: topic id, lineages, partitions, descriptions and the time of groups."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.archive_reading.test_lookup import timed
from tests.support import restore_runs
from tests.support.archives import NOW_MS, ORDERS, OTHER, PAYMENTS, RECREATED, ArchiveOfTest, archive_config
from tests.support.record_batches import batch, marker

from shallow_mirror.archive_reading.state_at_cut import StateAtCut
from shallow_mirror.checkpoints import first_rows_at
from shallow_mirror.checkpoints.ledger import ArchivedTopics, ArchiveTable, RestoreRanges, TopicDescription
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.streaming.planning import RestorePlanner, described_topics, group_times
from shallow_mirror.types import SourcePartition, TargetPartition

pytestmark = pytest.mark.thorough

T = NOW_MS
THIRD = ORDERS._replace(topic_id="srcsrcsrcsrcsrcsrcsrcD")
Ranges = dict[SourcePartition, tuple[int, int, int]]
"""Start, end and lineage."""


def at(time_ms: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)).isoformat()


def storage_of(archive: ArchiveOfTest) -> TableStorage:
    return TableStorage(archive.config.table_location)


def describe(archive: ArchiveOfTest, source: SourcePartition, partitions: int, **configs: str) -> None:
    """Record a topic as the capture does, at the time of the archive."""
    topic = TopicDescription(topic=source.topic, topic_id=source.topic_id, partitions=partitions, configs=configs)
    topics = ArchivedTopics.of(storage_of(archive))
    topics.record([topic], run_epoch=1, micro_batch=archive.owner.micro_batch, at_ms=archive.now_ms)


def register(archive: ArchiveOfTest, *sources: SourcePartition) -> None:
    archive.decide(*first_rows_at(dict.fromkeys(sources, 0), lambda source: TargetPartition(*source)))


class Planned:
    """A restore that was planned. `until` is that of the restore file."""

    def __init__(self, archive: ArchiveOfTest, folder: Path, **until: Any) -> None:
        config = restore_runs.config(folder, archive.config, "127.0.0.1:1", until=until)
        self.storage = storage_of(archive)
        self.table = ArchiveTable.open(archive.config.table_location)
        self.until = config.until
        planner = RestorePlanner(config, self.table, archive.store, self.storage)
        self.decided: RestoreRanges = planner.decide_ranges()
        self.choices = planner.choices
        self.ranges: Ranges = {
            source: (offsets.start, offsets.end, self.decided.lineages[source]) for source, offsets in self.decided.ranges.items()
        }

    @property
    def described(self) -> dict[str, TopicDescription]:
        return described_topics(self.storage, self.decided)

    def groups_at_ms(self, now_ms: int) -> dict[str, int]:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        times = group_times(self.table, self.storage, self.decided, self.until, now)
        return {topic: round(time.timestamp() * 1000) for topic, time in times.items()}


def planned(archive: ArchiveOfTest, folder: Path, **until: Any) -> Ranges:
    return Planned(archive, folder, **until).ranges


@pytest.fixture
def recreated(tmp_path: Path) -> ArchiveOfTest:
    """Ten records of orders at T; payments beside it at T + 2,000; orders deleted and created again, seen at T + 10,000."""
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T + 10)
    archive.archive({ORDERS: [timed(0, *range(T, T + 10))]})
    archive.now_ms = T + 2_000
    archive.archive({PAYMENTS: [timed(0, T + 1_000)]})
    archive.now_ms = T + 10_000
    archive.archive({RECREATED: [timed(0, T + 5_000, T + 5_001)]})
    archive.now_ms = T + 20_000
    archive.archive({RECREATED: [timed(2, T + 15_000)]})
    return archive


@pytest.mark.parametrize(
    ("time_ms", "source", "end"),
    [
        (T + 5, ORDERS, 6),  # the archive had seen no topic yet: its first one counts
        (T + 100, ORDERS, 10),
        (T + 2_000, ORDERS, 10),  # exactly the last decision without the new topic
        (T + 4_999, ORDERS, 10),
        (T + 5_000, RECREATED, 1),  # between decisions a record of the new topic decides
        (T + 9_999, RECREATED, 2),
        (T + 10_000, RECREATED, 2),
        (T + 99_999, RECREATED, 3),
    ],
)
def test_a_cut_by_time_takes_the_topic_that_was_there_then(
    recreated: ArchiveOfTest, tmp_path: Path, time_ms: int, source: SourcePartition, end: int
) -> None:
    ranges = planned(recreated, tmp_path, time=at(time_ms))
    assert {each: ranges[each][:2] for each in ranges if each.topic == "orders"} == {source: (0, end)}


def test_a_cut_by_decision_and_one_by_time_there_are_the_same(recreated: ArchiveOfTest, tmp_path: Path) -> None:
    for decision, time_ms in ((1, T + 10), (2, T + 2_000), (3, T + 10_000), (4, T + 20_000)):
        by_decision, by_time = planned(recreated, tmp_path, decision=decision), planned(recreated, tmp_path, time=at(time_ms))
        assert by_decision == {source: by_time[source] for source in by_decision}
        assert all(by_time[source][1] == 0 for source in by_time.keys() - by_decision.keys())
    assert planned(recreated, tmp_path) == {RECREATED: (0, 3, 0), PAYMENTS: (0, 1, 0)}


def test_the_choice_between_topic_ids_is_named_with_both_of_them(recreated: ArchiveOfTest, tmp_path: Path) -> None:
    (choice,) = Planned(recreated, tmp_path, time=at(T + 6_000)).choices
    assert choice == (
        "topic orders was deleted and created again while it was archived: srcsrcsrcsrcsrcsrcsrcA (archived "
        "2023-11-14T22:13:20.010+00:00 to 2023-11-14T22:13:20.010+00:00: offsets 0 to 10 of orders-0), srcsrcsrcsrcsrcsrcsrcC "
        "(archived 2023-11-14T22:13:30.000+00:00 to 2023-11-14T22:13:40.000+00:00: offsets 0 to 3 of orders-0); of these topic "
        "ids srcsrcsrcsrcsrcsrcsrcC counts: the cut lies between 2023-11-14T22:13:22.000+00:00, when the archive had not seen the "
        "next one, and 2023-11-14T22:13:30.000+00:00, when it had; a record in orders-0, at offset 0 or in the same batch, is of "
        "2023-11-14T22:13:25.000+00:00"
    )
    (choice,) = Planned(recreated, tmp_path, time=at(T + 4_000)).choices
    assert "srcA counts: the cut lies between" in choice
    assert choice.endswith("no record of the next one is of the time between")
    assert (
        Planned(recreated, tmp_path, time=at(T + 100))
        .choices[0]
        .endswith("A counts: the newest that the archive had seen at the cut")
    )
    assert Planned(recreated, tmp_path, decision=1).choices == []


def test_an_aborted_record_does_not_show_that_the_next_topic_was_there(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T)
    archive.archive({ORDERS: [timed(0, T)]})
    archive.now_ms = T + 10_000
    aborted = [batch(0, 1, attributes=0x10, producer_id=7, timestamp=T + 1), marker(1, 0, 7), timed(2, T + 5_000)]
    archive.archive({RECREATED: aborted}, aborted={RECREATED: [(7, 0)]})
    assert list(planned(archive, tmp_path, time=at(T + 4_000))) == [ORDERS]
    assert planned(archive, tmp_path, time=at(T + 5_000)) == {RECREATED: (0, 3, 0)}


def test_a_topic_that_is_filled_again_from_a_copy_does_not_count_before_it_was_seen(tmp_path: Path) -> None:
    """Its records have the times that they had: they do not show when they were written."""
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T)
    archive.archive({ORDERS: [timed(0, *range(T - 50, T))]})
    archive.now_ms = T + 10_000
    archive.archive({RECREATED: [timed(0, *range(T - 50, T)), timed(50, T + 6_000)]})
    assert planned(archive, tmp_path, time=at(T + 5_000)) == {ORDERS: (0, 50, 0)}
    assert planned(archive, tmp_path, time=at(T + 6_000)) == {RECREATED: (0, 51, 0)}


@pytest.mark.parametrize(("time_ms", "source"), [(T - 9, ORDERS), (T + 150, ORDERS), (T + 1_500, RECREATED), (T + 2_500, THIRD)])
def test_of_a_topic_that_was_created_again_twice_each_is_reached(tmp_path: Path, time_ms: int, source: SourcePartition) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T)
    for number, incarnation in enumerate((ORDERS, RECREATED, THIRD)):
        archive.now_ms = T + 1_000 * number
        archive.archive({incarnation: [timed(0, T - 10, T + 1_000 * number)]})
    assert list(planned(archive, tmp_path, time=at(time_ms))) == [source]
    assert list(planned(archive, tmp_path, topic_ids={"orders": source.topic_id})) == [source]


def test_a_description_shows_the_next_topic_before_its_first_row(recreated: ArchiveOfTest, tmp_path: Path) -> None:
    recreated.now_ms = T + 3_000
    describe(recreated, RECREATED, 1)
    assert list(planned(recreated, tmp_path, time=at(T + 2_500))) == [ORDERS, PAYMENTS]
    assert planned(recreated, tmp_path, time=at(T + 3_000))[RECREATED] == (0, 0, 0)


def test_a_topic_of_which_nothing_is_archived_yet_is_named_and_does_not_count(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T)
    archive.archive({ORDERS: [timed(0, T)]})
    archive.now_ms = T + 1_000
    describe(archive, RECREATED, 1)
    restore = Planned(archive, tmp_path)
    assert list(restore.ranges) == [ORDERS]
    assert f"{RECREATED.topic_id} (seen 2023-11-14T22:13:21.000+00:00, nothing archived)" in restore.choices[0]
    with pytest.raises(ConfigError, match=f"has nothing of topic orders with topic id {RECREATED.topic_id}"):
        planned(archive, tmp_path, topic_ids={"orders": RECREATED.topic_id})


def test_a_restore_file_names_the_topic_id_with_every_kind_of_cut(recreated: ArchiveOfTest, tmp_path: Path) -> None:
    former = {"topic_ids": {"orders": ORDERS.topic_id}}
    cuts: tuple[tuple[dict[str, Any], int], ...] = (
        ({}, 10),
        ({"time": at(T + 30_000)}, 10),
        ({"time": at(T + 3)}, 4),
        ({"decision": 4}, 10),
        ({"offsets": {"orders": {0: 7}}}, 7),
    )
    for until, end in cuts:
        assert planned(recreated, tmp_path, **until, **former)[ORDERS] == (0, end, 0)
    later = {"topic_ids": {"orders": RECREATED.topic_id}}
    assert planned(recreated, tmp_path, time=at(T + 2_000), **later)[RECREATED] == (0, 0, 0)
    assert Planned(recreated, tmp_path, **former).choices[0].endswith(f"{ORDERS.topic_id} counts: it was asked for")


@pytest.mark.parametrize(
    ("until", "problem"),
    [
        (
            {"topic_ids": {"orders": "nonsense"}},
            "until.topic_ids: the archive has nothing of topic orders with topic id nonsense; it has srcsrcsrcsrcsrcsrcsrcA (archived "
            "2023-11-14T22:13:20.010+00:00 to 2023-11-14T22:13:20.010+00:00: offsets 0 to 10 of orders-0); srcsrcsrcsrcsrcsrcsrcC ("
            "archived 2023-11-14T22:13:30.000+00:00 to 2023-11-14T22:13:40.000+00:00: offsets 0 to 3 of orders-0)",
        ),
        (
            {"decision": 1, "topic_ids": {"orders": RECREATED.topic_id}},
            "until.topic_ids: the archive has nothing of topic orders with topic id srcsrcsrcsrcsrcsrcsrcC; it has "
            "srcsrcsrcsrcsrcsrcsrcA (archived 2023-11-14T22:13:20.010+00:00 to 2023-11-14T22:13:20.010+00:00: offsets 0 to 10 of "
            "orders-0)",
        ),
        ({"topic_ids": {"refunds": "x"}}, "until.topic_ids: the archive has no topic refunds, or it is not included"),
        (
            {"offsets": {"orders": {0: 8}}},
            "until.offsets: orders-0: 8 is not in the archive, which has 0 to 3 of the topic id that counts; restore another one "
            "with until.topic_ids {orders: ID}: srcsrcsrcsrcsrcsrcsrcA (archived 2023-11-14T22:13:20.010+00:00 to "
            "2023-11-14T22:13:20.010+00:00: offsets 0 to 10 of orders-0)",
        ),
        ({"offsets": {"orders": {0: 11}}}, "until.offsets: orders-0: 11 is not in the archive, which has 0 to 3"),
    ],
)
def test_what_the_archive_does_not_have_is_refused_with_what_it_has(
    recreated: ArchiveOfTest, tmp_path: Path, until: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(recreated, tmp_path, **until)
    assert caught.value.problems == (problem,)


def test_a_topic_that_was_created_again_with_fewer_partitions_names_the_former_one(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T)
    archive.archive({ORDERS: [timed(0, T)], OTHER: [timed(0, T)]})
    archive.now_ms = T + 1_000
    archive.archive({RECREATED: [timed(0, T + 1_000)]})
    assert sorted(planned(archive, tmp_path, time=at(T + 1))) == [ORDERS, OTHER]
    assert list(planned(archive, tmp_path)) == [RECREATED]
    with pytest.raises(ConfigError, match=f"no partition orders-1.*until.topic_ids.*{ORDERS.topic_id} .*of orders-1"):
        planned(archive, tmp_path, offsets={"orders": {1: 1}})


def test_a_topic_all_of_whose_data_has_expired_is_refused_with_what_is_left(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path, retention={"orders": {"keep": "5 hours"}}), now_ms=T)
    archive.archive({ORDERS: [timed(0, T)]})
    archive.archive({PAYMENTS: [timed(0, T)]})
    archive.now_ms = T + 4 * 3_600_000
    archive.archive({RECREATED: [timed(0, archive.now_ms)]})
    expire(archive.config, takes_over=True, now_ms=lambda: T + 6 * 3_600_000)
    for until in ({"time": at(T + 1_000)}, {"topic_ids": {"orders": ORDERS.topic_id}}):
        with pytest.raises(ConfigError) as caught:
            planned(archive, tmp_path, **until)
        assert f"topic orders: all that was archived of topic id {ORDERS.topic_id} has expired: exclude the topic" in str(
            caught.value
        )
        assert f"until.topic_ids {{orders: ID}}: {RECREATED.topic_id} (archived" in str(caught.value)
    assert planned(archive, tmp_path)[RECREATED] == (0, 1, 0)


# Lineages


@pytest.fixture
def truncated(tmp_path: Path) -> ArchiveOfTest:
    """Ten records at T; the log is truncated to 6 and gets two other records, seen at T + 10,000."""
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T + 10)
    archive.archive({ORDERS: [timed(offset, T + offset) for offset in range(10)]})
    archive.now_ms = T + 10_000
    archive.begin_lineage(ORDERS, 6, 3)
    archive.archive({ORDERS: [batch(6, 2, timestamp=T + 5_000, leader_epoch=4)]})
    return archive


@pytest.mark.parametrize(
    ("time_ms", "expected"),
    [
        (T + 3, (0, 4, 0)),
        (T + 10, (0, 10, 0)),
        (T + 4_999, (0, 10, 0)),
        (T + 5_000, (0, 8, 1)),
        (T + 10_000, (0, 8, 1)),
    ],
)
def test_a_cut_by_time_takes_the_log_that_was_there_then(
    truncated: ArchiveOfTest, tmp_path: Path, time_ms: int, expected: tuple[int, int, int]
) -> None:
    assert planned(truncated, tmp_path, time=at(time_ms)) == {ORDERS: expected}
    (choice,) = Planned(truncated, tmp_path, time=at(time_ms)).choices
    assert choice.startswith(f"orders-0: of its lineages 0, 1 the log of {expected[2]} counts: ")
    assert Planned(truncated, tmp_path, time=at(time_ms), lineage=0).ranges[ORDERS][2] == 0


def test_an_offset_that_only_a_former_lineage_has_is_refused_with_that_lineage(truncated: ArchiveOfTest, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"orders-0: 9 is not .* which has 0 to 8; lineage 0 has it \(until.lineage\)$"):
        planned(truncated, tmp_path, offsets={"orders": {0: 9}})
    assert planned(truncated, tmp_path, offsets={"orders": {0: 9}}, lineage=0) == {ORDERS: (0, 9, 0)}


def test_records_that_both_logs_have_do_not_show_that_the_next_lineage_had_begun(tmp_path: Path) -> None:
    """The divergent offset may be too low: the lineage then begins with what was archived before."""
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T + 10)
    repeated = [batch(offset, timestamp=T + offset) for offset in range(10)]
    archive.archive({ORDERS: repeated})
    archive.now_ms = T + 10_000
    archive.begin_lineage(ORDERS, 4, 3)
    older = batch(8, timestamp=T + 20, leader_epoch=2)
    archive.archive({ORDERS: [*repeated[4:8], older, batch(9, timestamp=T + 5_000, leader_epoch=4)]})
    assert planned(archive, tmp_path, time=at(T + 4_000)) == {ORDERS: (0, 10, 0)}
    assert planned(archive, tmp_path, time=at(T + 5_000)) == {ORDERS: (0, 10, 1)}


def test_lineages_of_each_incarnation_are_its_own(truncated: ArchiveOfTest, tmp_path: Path) -> None:
    truncated.now_ms = T + 20_000
    truncated.archive({RECREATED: [timed(0, T + 15_000, T + 15_001)]})
    truncated.now_ms = T + 30_000
    truncated.begin_lineage(RECREATED, 1, 3)
    truncated.archive({RECREATED: [batch(1, timestamp=T + 25_000, leader_epoch=4)]})
    times = {
        T + 100: {ORDERS: (0, 10, 0)},
        T + 12_000: {ORDERS: (0, 8, 1)},
        T + 21_000: {RECREATED: (0, 2, 0)},
        T + 26_000: {RECREATED: (0, 2, 1)},
    }
    for time_ms, expected in times.items():
        assert planned(truncated, tmp_path, time=at(time_ms)) == expected


# Partitions and descriptions


@pytest.fixture
def grown(tmp_path: Path) -> ArchiveOfTest:
    """One partition of orders; at T + 10,000 there are two and other settings, which the archive sees before rows."""
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T)
    describe(archive, ORDERS, 1, **{"retention.ms": "1"})
    register(archive, ORDERS)
    archive.archive({ORDERS: [timed(0, T - 5, T - 4)]})
    archive.now_ms = T + 1_000
    archive.archive({ORDERS: [timed(2, T + 900)]})
    archive.now_ms = T + 10_000
    describe(archive, ORDERS, 2, **{"retention.ms": "2"})
    archive.now_ms = T + 10_100
    register(archive, OTHER)
    archive.archive({OTHER: [timed(0, T + 9_000, T + 10_050)]})
    return archive


@pytest.mark.parametrize(
    ("until", "partitions", "retention", "ranges"),
    [
        ({}, 2, "2", {ORDERS: (0, 3, 0), OTHER: (0, 2, 0)}),
        ({"time": at(T - 4)}, 1, "1", {ORDERS: (0, 2, 0)}),
        ({"time": at(T + 1_000)}, 1, "1", {ORDERS: (0, 3, 0)}),
        ({"time": at(T + 8_999)}, 1, "1", {ORDERS: (0, 3, 0)}),
        ({"time": at(T + 9_500)}, 2, "1", {ORDERS: (0, 3, 0), OTHER: (0, 1, 0)}),  # a record shows it
        ({"time": at(T + 10_000)}, 2, "2", {ORDERS: (0, 3, 0), OTHER: (0, 1, 0)}),
        ({"decision": 3}, 1, "1", {ORDERS: (0, 3, 0)}),
        ({"decision": 4}, 2, "2", {ORDERS: (0, 3, 0), OTHER: (0, 0, 0)}),
        ({"decision": 1}, 1, "1", {ORDERS: (0, 0, 0)}),
        ({"offsets": {"orders": {0: 1}}}, 2, "2", {ORDERS: (0, 1, 0)}),
    ],
)
def test_partitions_and_settings_are_those_of_the_cut(
    grown: ArchiveOfTest, tmp_path: Path, until: dict[str, Any], partitions: int, retention: str, ranges: Ranges
) -> None:
    restore = Planned(grown, tmp_path, **until)
    description = restore.described["orders"]
    assert restore.ranges == ranges
    assert (description.partitions, description.configs["retention.ms"]) == (partitions, retention)


def test_partitions_that_were_added_after_the_cut_are_named(grown: ArchiveOfTest, tmp_path: Path) -> None:
    assert Planned(grown, tmp_path, time=at(T + 1_000)).choices == [
        "orders-1: the topic did not have these partitions at the cut"
    ]
    (choice,) = Planned(grown, tmp_path, time=at(T + 9_500)).choices
    assert choice.startswith("orders-1 was added between 2023-11-14T22:13:21.000+00:00 and 2023-11-14T22:13:30.000+00:00")


def test_a_description_shows_that_a_topic_did_not_have_a_partition_yet(tmp_path: Path) -> None:
    """A record that claims to be older than the description was written later."""
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=T)
    describe(archive, ORDERS, 1)
    archive.archive({ORDERS: [timed(0, T - 5)]})
    archive.now_ms = T + 5_000
    describe(archive, ORDERS, 1, **{"retention.ms": "1"})  # no decision followed
    archive.now_ms = T + 10_000
    describe(archive, ORDERS, 2, **{"retention.ms": "1"})
    archive.archive({OTHER: [timed(0, T + 3_000, T + 6_000)]})
    assert planned(archive, tmp_path, time=at(T + 4_000)) == {ORDERS: (0, 1, 0)}
    assert planned(archive, tmp_path, time=at(T + 7_000)) == {ORDERS: (0, 1, 0), OTHER: (0, 2, 0)}


def test_a_partition_that_the_archive_could_not_read_at_first_was_there(grown: ArchiveOfTest, tmp_path: Path) -> None:
    """It begins above offset 0: what it had at the cut was lost before."""
    late = ORDERS._replace(partition=2)
    grown.decide(*first_rows_at({late: 7}, lambda source: TargetPartition(*source)))
    grown.archive({late: [timed(7, T + 20_000)]})
    with pytest.raises(ConfigError, match="orders-2: the archive began after the cut; it has offsets 7 to 8"):
        planned(grown, tmp_path, time=at(T + 1_000))


def test_a_description_that_is_recorded_again_later_does_not_hide_the_one_of_the_cut(
    grown: ArchiveOfTest, tmp_path: Path
) -> None:
    grown.now_ms = T + 50_000
    describe(grown, ORDERS, 2, **{"retention.ms": "1"})
    describe(grown, ORDERS, 2, **{"retention.ms": "2"})
    restore = Planned(grown, tmp_path, time=at(T + 20_000))
    assert (restore.described["orders"].partitions, restore.described["orders"].configs["retention.ms"]) == (2, "2")
    assert Planned(grown, tmp_path, time=at(T + 1_000)).described["orders"].configs["retention.ms"] == "1"


def test_a_later_start_keeps_the_description_of_the_first_one(grown: ArchiveOfTest, tmp_path: Path) -> None:
    """Also up to a time that was in the future then."""
    restore = Planned(grown, tmp_path, time=at(T + 90_000))
    archived = grown.owner.micro_batch
    grown.archive({ORDERS: [timed(3, T + 60_000)]})
    describe(grown, ORDERS, 4, **{"retention.ms": "4"})
    assert grown.owner.micro_batch > archived
    assert restore.described["orders"].partitions == 2
    assert Planned(grown, tmp_path, time=at(T + 90_000)).described["orders"].partitions == 4


def test_each_incarnation_has_its_own_description(recreated: ArchiveOfTest, tmp_path: Path) -> None:
    recreated.now_ms = T
    for source, partitions in ((ORDERS, 3), (PAYMENTS, 1)):
        describe(recreated, source, partitions)
    assert Planned(recreated, tmp_path, time=at(T + 100)).described["orders"].partitions == 3
    with pytest.raises(ConfigError, match="archive_topics does not describe orders"):
        _ = Planned(recreated, tmp_path).described


# Groups


def test_positions_of_groups_are_those_of_the_incarnation_that_is_restored(recreated: ArchiveOfTest, tmp_path: Path) -> None:
    """When a topic is deleted its groups lose their offsets: those of the last decision with it count then."""
    now_ms = T + 60_000
    former = {"topic_ids": {"orders": ORDERS.topic_id}}
    assert Planned(recreated, tmp_path).groups_at_ms(now_ms) == {"orders": now_ms, "payments": now_ms}
    assert Planned(recreated, tmp_path, time=at(T + 1_500)).groups_at_ms(now_ms) == {"orders": T + 1_500, "payments": T + 1_500}
    assert Planned(recreated, tmp_path, decision=2).groups_at_ms(now_ms) == {"orders": T + 2_000, "payments": T + 2_000}
    assert Planned(recreated, tmp_path, **former).groups_at_ms(now_ms) == {"orders": T + 10, "payments": now_ms}
    assert Planned(recreated, tmp_path, time=at(T + 15_000), **former).groups_at_ms(now_ms) == {
        "orders": T + 10,
        "payments": T + 15_000,
    }


def test_the_newest_state_needs_no_object(recreated: ArchiveOfTest) -> None:
    state = StateAtCut(ArchiveTable.open(recreated.config.table_location))
    assert state.topic(state.history()["orders"]).incarnation.topic_id == RECREATED.topic_id
