"""The whole of it, against strict clusters: what is found, where it begins, and that nothing but questions is sent."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster
from tests.preflight.conftest import OPEN, Planned, mirrored_up_to
from tests.support.record_batches import batch, marker

from shallow_mirror.broker.admin import Operation
from shallow_mirror.checkpoints.logs.runs import MicroBatchObservation, RunHistory
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import BrokerTooOldError, ConfigError
from shallow_mirror.preflight import PreflightProgress, PreflightReport, TopicReport, preflight_mirror, run as preflight_run
from shallow_mirror.preflight.findings import Level

ASKED_ONLY = {"ApiVersions", "Metadata", "ListOffsets", "DescribeConfigs", "Fetch", "ListGroups", "EndTxn", "Heartbeat"}
"""The last two are of a producer and a member that nobody is."""


def topic_of(report: PreflightReport, name: str) -> TopicReport:
    (actual,) = [topic for topic in report.topics if topic.topic == name]
    return actual


def sentences(report: PreflightReport, level: Level) -> list[str]:
    return [f"{finding.subject}: {finding.what}" for finding in report.findings if finding.level is level]


def test_a_clean_topic_passes_raw_and_nothing_but_questions_is_sent(planned: Planned) -> None:
    planned.topic("orders", 2)
    planned.source.seed(("orders", 0), batch(0, 5), batch(5, 5, attributes=4))
    planned.source.seed(("orders", 1), batch(0, 3))
    report = planned.check()
    assert report.is_fine, report.findings
    (orders,) = report.topics
    assert (orders.counts.raw.batch_count, orders.counts.data.record_count, orders.target.exists) == (3, 13, True)
    assert (report.backlog.offsets, report.backlog.is_exact, report.has_map) == (13, True, False)
    for cluster in (planned.source, planned.target):
        assert {request.api for request in cluster.received} <= ASKED_ONLY
        assert {request.body.producer_id for request in cluster.received if request.api == "EndTxn"} <= {-1}
        assert {request.body.member_id for request in cluster.received if request.api == "Heartbeat"} <= {""}
        assert cluster.auto_created == []
    assert list(planned.folder.iterdir()) == []


def test_a_sample_ends_at_its_bound_and_says_how_far_it_came(planned: Planned) -> None:
    planned.topic("orders", 2)
    for partition in range(2):
        planned.source.seed(("orders", partition), *(batch(n, 1, payload=b"x" * 10_000) for n in range(200)))
    whole = planned.check().backlog.size_bytes
    report = planned.check(sample_bytes=200_000)
    samples = topic_of(report, "orders").samples.values()
    assert all(200_000 <= sample.read_bytes < 400_000 and not sample.is_whole for sample in samples)
    assert (report.backlog.size_bytes, report.backlog.is_exact) == (whole, False)


def test_refused_batches_are_counted_by_rule_and_make_it_not_fine(planned: Planned) -> None:
    planned.topic("orders", 1, **{"max.message.bytes": "200"})
    planned.source.seed(("orders", 0), batch(0, 1), batch(1, 1, payload=b"x" * 900), batch(2, 30))
    report = planned.check()
    counts = topic_of(report, "orders").counts
    assert not report.is_fine
    assert (counts.raw.batch_count, counts.refused.batch_count, counts.rebuilt.batch_count) == (1, 1, 1)
    assert any(
        "has max.message.bytes=200, below the source topic's 1048588" in sentence for sentence in sentences(report, Level.DOUBT)
    )


def test_damage_is_reported_and_the_other_partitions_are_read(planned: Planned) -> None:
    planned.topic("orders", 2)
    planned.source.seed(("orders", 0), batch(0, 5), batch(5, 1, magic=9))
    planned.source.seed(("orders", 1), batch(0, 5))
    report = planned.check()
    assert ["corrupt record batch at base offset 5" in sentence for sentence in sentences(report, Level.STOPS)] == [True]
    assert topic_of(report, "orders").counts.raw.record_count == 10


def test_aborted_data_and_markers_are_dropped_and_open_transactions_waited_for(planned: Planned) -> None:
    planned.topic("orders")
    in_txn: dict[str, Any] = {"attributes": 0x10, "producer_epoch": 0, "base_sequence": 0}
    planned.source.seed(
        ("orders", 0), batch(0, 5, producer_id=7, **in_txn), marker(5, 0, 7), batch(6, 2), batch(8, 3, producer_id=8, **in_txn)
    )
    report = planned.check()
    counts = topic_of(report, "orders").counts
    assert {kind.value: amount.record_count for kind, amount in counts.dropped.items()} == {"aborted": 5, "abort": 1}
    assert (counts.data.record_count, report.backlog.offsets) == (2, 8)


def test_it_begins_where_read_start_says_while_there_is_no_map(planned: Planned) -> None:
    planned.topic("orders")
    planned.source.seed(("orders", 0), batch(0, 5), batch(5, 5))
    planned.source.log("orders").delete_records_before(3)
    earliest = planned.check()
    assert [sample.position for sample in topic_of(earliest, "orders").samples.values()] == [3]
    assert any("straddles the position 3" in rule for rule in topic_of(earliest, "orders").counts.rebuilds)
    latest = planned.check(read={"start": "latest"})
    assert (latest.backlog.offsets, latest.backlog.size_bytes) == (0, 0)


def test_it_begins_at_the_positions_of_the_map_and_leaves_the_tables_as_they_are(planned: Planned) -> None:
    planned.topic("orders")
    planned.source.seed(("orders", 0), batch(0, 5), batch(5, 5))
    planned.target.seed(("orders", 0), batch(0, 5))
    config = planned.config(read={"start": "latest"})
    mirrored_up_to(planned, config, "orders", 5)
    observed = MicroBatchObservation(
        run_epoch=1, micro_batch=1, fetched_bytes=8_000_000, size_bytes=1, batch_count=1, rebuilt_batch_count=0, record_count=5,
        dropped_batch_counts={}, duration_ms={"Total": 2_000.0}, lag_offsets=0, settled_at_ms=1,
    )  # fmt: skip
    RunHistory(TableStorage(config.tables).best_effort_tables()).micro_batch(observed)
    before = {path: path.read_bytes() for path in Path(config.tables).rglob("*") if path.is_file()}
    report = preflight_mirror(config, sample_bytes=None)
    assert report.has_map
    assert [(sample.position, sample.end) for sample in topic_of(report, "orders").samples.values()] == [(5, 10)]
    assert [pace.bytes_per_s for pace in report.paces] == [4_000_000]
    assert {path: path.read_bytes() for path in Path(config.tables).rglob("*") if path.is_file()} == before


def test_a_map_of_another_mirror_is_a_wrong_mirror_file(planned: Planned) -> None:
    planned.topic("orders")
    mirrored_up_to(planned, planned.config(mirror="other"), "orders", 0)
    with pytest.raises(ConfigError, match="other"):
        planned.check(mirror="mine")


def test_a_log_that_ends_below_the_position_stops_the_mirror(planned: Planned) -> None:
    planned.topic("orders")
    planned.source.seed(("orders", 0), batch(0, 5), batch(5, 5))
    config = planned.config()
    planned.target.seed(("orders", 0), batch(0, 20))
    mirrored_up_to(planned, config, "orders", 20)
    assert any(
        "the log ends at 10, below the position" in sentence for sentence in sentences(preflight_mirror(config), Level.STOPS)
    )


def test_a_position_below_the_log_start_is_data_loss(planned: Planned) -> None:
    planned.topic("orders")
    planned.source.seed(("orders", 0), batch(0, 5), batch(5, 5))
    config = planned.config()
    planned.target.seed(("orders", 0), batch(0, 5))
    mirrored_up_to(planned, config, "orders", 5)
    planned.source.log("orders").delete_records_before(7)
    report = preflight_mirror(config)
    assert any("expected offset 5, source log starts at 7" in sentence for sentence in sentences(report, Level.STOPS))
    assert report.backlog.unread_partitions == 1


def test_a_source_topic_that_was_created_again_stops_the_mirror(planned: Planned) -> None:
    planned.topic("orders")
    config = planned.config()
    mirrored_up_to(planned, config, "orders", 0)
    planned.source.delete_topic("orders")
    planned.source.create_topic("orders")
    report = preflight_mirror(config)
    assert any("deleted and created again" in sentence for sentence in sentences(report, Level.STOPS))
    assert report.backlog.unread_partitions == 1


def test_a_deleted_target_topic_with_copies_is_not_created_again(planned: Planned) -> None:
    planned.topic("orders")
    config = planned.config()
    mirrored_up_to(planned, config, "orders", 0)
    planned.target.delete_topic("orders")
    gone = preflight_mirror(config)
    assert "was deleted, with what was copied to it" in sentences(gone, Level.STOPS)[0]
    assert topic_of(gone, "orders").target.created_with is None
    planned.target.create_topic("orders")
    assert "was deleted and created again" in sentences(preflight_mirror(config), Level.STOPS)[0]


def test_target_settings_that_break_the_copy_are_reported(planned: Planned) -> None:
    planned.topic("few", 3)
    planned.target.delete_topic("few")
    planned.target.create_topic("few", 2, **OPEN)
    planned.topic("zstd", 1, **{"compression.type": "zstd"})
    planned.topic("isr", 1, **{"min.insync.replicas": "2"})
    planned.topic("stamps", 1, **{"message.timestamp.type": "LogAppendTime"})
    planned.topic("compacts", 1, **{"cleanup.policy": "compact"})
    report = planned.check()
    stops, doubts = sentences(report, Level.STOPS), sentences(report, Level.DOUBT)
    assert [sentence.split(": ")[0] for sentence in stops] == ["target topic few", "target topic isr", "target topic zstd"]
    assert "has min.insync.replicas=2, more than its 1 replicas" in stops[1]
    assert any("target topic stamps: has message.timestamp.type=LogAppendTime" in doubt for doubt in doubts)
    assert any("target topic compacts: has cleanup.policy=compact" in doubt for doubt in doubts)


def test_a_missing_target_topic_is_described_as_it_would_be_created(planned: Planned) -> None:
    configs: dict[str, Any] = {"cleanup.policy": "compact", "max.message.bytes": "5000"}
    planned.source.create_topic("orders", 3, **configs)
    target = topic_of(planned.check(), "orders").target
    assert (target.exists, target.partition_count, target.replication_factor) == (False, 3, 1)
    assert target.created_with is not None
    assert (target.created_with["cleanup.policy"], target.max_message_bytes) == ("compact", 5000)
    assert topic_of(planned.check(), "orders").target.document()["created_with"]["compression.type"] == "producer"


def test_the_copy_of_a_compacted_topic_that_holds_records_is_described_as_it_is_created_at_first(planned: Planned) -> None:
    configs: dict[str, Any] = {"cleanup.policy": "compact"}
    planned.source.create_topic("orders", 1, **configs)
    planned.source.seed(("orders", 0), batch(0, 5))
    created_with = topic_of(planned.check(), "orders").target.created_with
    assert created_with is not None
    assert (created_with["cleanup.policy"], created_with["retention.ms"]) == ("delete", "-1")


@pytest.mark.parametrize("is_mirrored", [True, False])
def test_a_target_topic_that_another_application_writes_to_is_a_warning(
    planned: Planned, is_mirrored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_run, "run_status", lambda *_: SimpleNamespace(is_alive=False))
    planned.topic("orders")
    planned.source.seed(("orders", 0), batch(0, 5))
    config = planned.config()
    if is_mirrored:
        mirrored_up_to(planned, config, "orders", 0)

    def write_there(_progress: PreflightProgress) -> None:
        if planned.target.log("orders").end_offset == 0:
            planned.target.seed(("orders", 0), batch(0, 5))

    report = preflight_mirror(config, on_progress=write_there)
    assert any(
        "target topic orders: grew while it was checked: another application writes to it (MirrorMaker 2" in doubt
        for doubt in sentences(report, Level.DOUBT)
    )
    assert report.is_fine


def test_a_missing_target_topic_that_is_not_created_stops_the_mirror(planned: Planned) -> None:
    planned.source.create_topic("orders", 3)
    report = planned.check(topics={"create": False})
    assert "does not exist and topics.create is false: create it with at least 3 partitions" in sentences(report, Level.STOPS)[0]
    assert topic_of(report, "orders").target.created_with is None


def test_more_replicas_than_brokers_and_more_in_sync_than_replicas_stop_the_mirror(planned: Planned) -> None:
    planned.source.create_topic("orders")
    assert topic_of(planned.check(topics={"replication_factor": 2}), "orders").target.replication_factor == 1
    planned.target.broker_configs |= {"min.insync.replicas": "3", "default.replication.factor": "2"}
    assert any(
        "would be created with 2 replicas; the target has 1 broker" in sentence
        for sentence in sentences(planned.check(), Level.STOPS)
    )
    planned.target.broker_configs["default.replication.factor"] = "1"
    assert any(
        "has min.insync.replicas=3, more than its 1 replicas" in sentence for sentence in sentences(planned.check(), Level.STOPS)
    )


def test_partitions_that_a_mirrored_topic_gained_would_be_added(planned: Planned) -> None:
    planned.topic("orders", 1)
    config = planned.config()
    mirrored_up_to(planned, config, "orders", 0)
    with planned.source.lock:
        planned.source.logs["orders", 1] = planned.source.logs["orders", 0]
    target = topic_of(preflight_mirror(config), "orders").target
    assert (target.partition_count, target.added_partitions) == (2, 1)


def test_a_transaction_timeout_above_a_brokers_cap_stops_the_mirror(planned: Planned) -> None:
    planned.topic("orders")
    planned.target.broker_configs["transaction.max.timeout.ms"] = "59999"
    (stop,) = sentences(planned.check(), Level.STOPS)
    assert stop == (
        "cluster west, broker 1: has transaction.max.timeout.ms=59999: write.transaction_timeout_ms: 60000 is above "
        "transaction.max.timeout.ms of the target's brokers: lower it, or raise that"
    )


def test_broker_settings_that_may_not_be_read_are_not_known(planned: Planned) -> None:
    planned.topic("orders")
    planned.target.change("DescribeConfigs", error(31))
    report = planned.check()
    assert report.is_fine
    expected = "transaction.max.timeout.ms, offset.metadata.max.bytes and the defaults of new topics are not known"
    assert expected in sentences(report, Level.UNKNOWN)[0]


@pytest.mark.parametrize(
    ("api", "code", "right"), [("EndTxn", 53, "Write on transactional id"), ("Heartbeat", 30, "Read on group")]
)
def test_a_right_on_the_slots_is_asked_for_though_no_coordinator_is(planned: Planned, api: str, code: int, right: str) -> None:
    planned.topic("orders")
    planned.target.change_always(api, error(code))
    (stop,) = sentences(planned.check(mirror="m"), Level.STOPS)
    assert re.fullmatch(rf"cluster west: [A-Z_]+: grant {right} m-0", stop)


def test_a_topic_of_transactions_that_is_hidden_leaves_open_who_else_uses_the_slots(planned: Planned) -> None:
    planned.topic("orders")
    planned.target.change_always("Metadata", error(29, ("__transaction_state", -1)))
    report = planned.check(mirror="m")
    assert report.is_fine
    assert (
        "cluster west: whether another application uses m-0 is not known: topic __transaction_state is not visible to the mirror's user"
        in sentences(report, Level.UNKNOWN)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("has_map", "api"), [(True, "OffsetFetch"), (False, "OffsetFetch"), (True, "FindCoordinator")])
def test_groups_and_ids_that_may_not_be_described_are_reported_where_asking_creates_nothing(
    planned: Planned, has_map: bool, api: str
) -> None:
    planned.topic("orders")
    if has_map:
        mirrored_up_to(planned, planned.config(), "orders", 0)
    planned.target.change_always(api, error(30))
    assert planned.check().is_fine
    planned.target.create_topic("__consumer_offsets")
    (stop,) = sentences(planned.check(), Level.STOPS)
    assert stop.startswith("cluster west: ")
    assert "GROUP_AUTHORIZATION_FAILED: grant Read on group " in stop


def _forget_produce_9(body: Any) -> None:
    (produce,) = [api_key for api_key in body.api_keys if api_key.api_key == 0]
    produce.max_version = 8


def test_a_cluster_that_is_too_old_is_named(planned: Planned) -> None:
    planned.topic("orders")
    planned.target.alter_responses("ApiVersions", _forget_produce_9)
    with pytest.raises(BrokerTooOldError, match=r"offers Produce 0 to 8 \(needed: 9\)$"):
        planned.check()


def test_one_broker_that_is_too_old_among_others_stops_the_mirror(planned: Planned) -> None:
    with StrictCluster(nodes=2, cluster_id="west-id") as target:
        mixed = Planned(planned.folder, planned.source, target)
        mixed.topic("orders")
        target.alter_responses("ApiVersions", lambda body: _forget_produce_9(body) if target.received[-1].node_id == 2 else None)
        (stop,) = sentences(mixed.check(), Level.STOPS)
    assert stop.startswith("cluster west, broker 2: broker 127.0.0.1:")
    assert "offers Produce 0 to 8 (needed: 9)" in stop


def _grant(planned: Planned, cluster: str, operations: set[Operation], on_cluster: set[Operation]) -> None:
    def respond(body: Any) -> None:
        body.authorized_operations = on_cluster
        for topic in body.topics:
            topic.authorized_operations = operations

    getattr(planned, cluster).alter_responses("Metadata", respond)


def test_rights_that_are_missing_are_named(planned: Planned) -> None:
    planned.topic("orders")
    planned.source.create_topic("new")
    _grant(planned, "source", {Operation.DESCRIBE}, set())
    _grant(planned, "target", {Operation.DESCRIBE}, set())
    assert sentences(planned.check(), Level.STOPS) == [
        *(f"source topic {topic}: TOPIC_AUTHORIZATION_FAILED: grant Read on topic {topic}" for topic in ("new", "orders")),
        *(
            f"target topic {topic}: TOPIC_AUTHORIZATION_FAILED: grant {operation} on topic {topic}"
            for topic, operations in (("new", "Write Read Create DescribeConfigs"), ("orders", "Write Read"))
            for operation in operations.split()
        ),
    ]
    _grant(planned, "source", {Operation.READ}, set())
    _grant(planned, "target", {Operation.READ, Operation.WRITE, Operation.DESCRIBE_CONFIGS}, {Operation.CREATE})
    assert sentences(planned.check(), Level.STOPS) == []


@pytest.mark.parametrize(
    ("groups", "level", "effect"),
    [
        (
            {"sync": "30 seconds"},
            Level.DOUBT,
            "offsets of groups are polled once per 30 seconds, and a fail-over without the source",
        ),
        ({"sync": "30 seconds", "follow": "required"}, Level.STOPS, "groups.follow is required"),
        ({"sync": "30 seconds", "follow": "off"}, None, ""),
        ({}, None, ""),
    ],
    ids=str,
)
def test_read_on_the_log_of_the_groups_is_asked_for_where_it_is_followed(
    planned: Planned, groups: dict[str, str], level: Level | None, effect: str
) -> None:
    planned.topic("orders")
    planned.source.create_topic("__consumer_offsets")

    def respond(body: Any) -> None:
        for topic in body.topics:
            topic.authorized_operations = {Operation.DESCRIBE} if topic.name.startswith("__") else {Operation.READ}

    planned.source.alter_responses("Metadata", respond)
    report = planned.check(groups=groups)
    about = [finding for finding in report.findings if "__consumer_offsets" in finding.subject]
    assert [finding.level for finding in about] == ([] if level is None else [level])
    assert report.is_fine == (level is not Level.STOPS)
    for finding in about:
        assert finding.what.startswith("TOPIC_AUTHORIZATION_FAILED: grant Read on topic __consumer_offsets; ")
        assert effect in finding.what


def test_a_topic_that_may_not_be_read_is_reported_and_the_others_are_read(planned: Planned) -> None:
    planned.topic("secret")
    planned.topic("orders")
    for topic in ("orders", "secret"):
        planned.source.seed((topic, 0), batch(0, 5))
    planned.source.change_always("Fetch", error(29, ("secret", 0)))
    report = planned.check()
    assert [
        "Fetch of secret-0" in sentence and "TOPIC_AUTHORIZATION_FAILED" in sentence
        for sentence in sentences(report, Level.STOPS)
    ] == [True]
    assert topic_of(report, "orders").counts.raw.record_count == 5


def test_a_target_topic_that_may_not_be_described_is_not_taken_for_missing(planned: Planned) -> None:
    planned.topic("orders")
    planned.target.change_always("Metadata", error(29, ("orders", -1)))
    report = planned.check()
    (stop,) = sentences(report, Level.STOPS)
    assert stop.startswith("target topic orders: TOPIC_AUTHORIZATION_FAILED: grant")
    assert topic_of(report, "orders").target.created_with is None


def test_a_source_topic_whose_settings_may_not_be_read_matters_where_its_target_is_created(planned: Planned) -> None:
    planned.topic("orders")
    planned.source.change_always("DescribeConfigs", error(29))
    report = planned.check()
    assert report.is_fine
    assert any(
        "its settings cannot be compared with those of orders" in sentence for sentence in sentences(report, Level.UNKNOWN)
    )
    planned.source.create_topic("new")
    (stop,) = sentences(planned.check(), Level.STOPS)
    assert stop.startswith("target topic new: cannot be created like new: reading the settings of topic new")


def test_settings_that_may_not_be_read_are_reported_by_topic(planned: Planned) -> None:
    planned.topic("orders")
    planned.topic("secret")
    planned.target.change_always("DescribeConfigs", error(29, ("secret", -1)))
    (stop,) = sentences(planned.check(), Level.STOPS)
    said_of_it = f"reading the settings of topic secret: the cluster at {planned.target.bootstrap} answered TOPIC_AUTHORIZATION"
    assert stop.startswith(f"target topic secret: {said_of_it}")


def test_a_codec_that_cannot_be_opened_here_stops_the_mirror_where_batches_are_rebuilt(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned.topic("orders")
    planned.source.seed(("orders", 0), *(batch(n * 5, deltas=[0, 2], attributes=n) for n in range(5)), batch(25, 1, attributes=3))
    assert planned.check().is_fine
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (stop,) = sentences(planned.check(), Level.STOPS)
    assert stop.startswith("this machine, for batches of zstd to be rebuilt: opening records needs the package zstandard")


def test_a_mirror_that_would_feed_itself_is_a_wrong_mirror_file(planned: Planned) -> None:
    planned.source.create_topic("orders")
    with pytest.raises(ConfigError, match="are one cluster"):
        Planned(planned.folder, planned.source, planned.source).check()


def test_a_preflight_that_has_nothing_to_look_at_is_not_fine(planned: Planned) -> None:
    report = planned.check(topics={"include": ["nothing"]})
    (stop,) = sentences(report, Level.STOPS)
    assert stop.startswith("cluster east: no topic of the source matches nothing (topics.include), so nothing is copied")
    assert not report.is_fine


def test_partitions_without_a_leader_are_not_known(planned: Planned) -> None:
    planned.topic("orders", 2)
    planned.source.move_leader(("orders", 1), 9)
    report = planned.check()
    assert sentences(report, Level.UNKNOWN) == [
        "source topic orders: 1 of 2 partitions have no leader now: nothing could be checked"
    ]


def test_progress_counts_the_whole_backlog_and_ends_at_it(planned: Planned) -> None:
    planned.topic("orders", 2)
    for partition in range(2):
        planned.source.seed(("orders", partition), *(batch(n * 5, 5) for n in range(20)))
    reported: list[PreflightProgress] = []
    preflight_mirror(planned.config(), sample_bytes=100, on_progress=reported.append)
    done = [progress.done_offsets for progress in reported]
    assert done == sorted(done)
    assert (done[-1], reported[-1].total_offsets, reported[-1].refused_batch_count) == (200, 200, 0)
    assert str(reported[-1]).endswith("nothing refused")


def test_the_report_for_machines_is_json_with_every_number(planned: Planned) -> None:
    planned.topic("orders", 1, **{"max.message.bytes": "200"})
    planned.source.seed(("orders", 0), batch(0, 1), batch(1, 1, payload=b"x" * 900))
    document = json.loads(json.dumps(planned.check(sample_bytes=1 << 20).document()))
    assert (document["is_fine"], document["sample_bytes"], document["has_map"]) == (False, 1 << 20, False)
    (orders,) = document["topics"]
    assert orders["refusals"][0]["first"] == {"topic": "orders", "partition": 0, "base_offset": 1}
    assert orders["partitions"][0]["position"] == 0
    assert document["source"] == {"alias": "east", "cluster_id": "east-id", "broker_count": 1}
    assert document["estimates"] == []
