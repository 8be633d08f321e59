"""`preflight` and the start of `run` give the same verdict in the same words, or the table says where they differ.

Each case arranges two strict clusters. `preflight` looks at them, and then `run` starts between them, up to the streaming query.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster
from tests.preflight.conftest import OPEN, Planned, mirrored_up_to
from tests.support import mirror_runs as runs
from tests.support.record_batches import batch, marker, record
from tests.verify.mirrored import kafka_text

from shallow_mirror.broker import MAX_NOTE_BYTES
from shallow_mirror.broker.admin import Operation
from shallow_mirror.broker.produce import MAX_RECEIPT_BYTES
from shallow_mirror.checkpoints.logs.topics import Controls, TopicIncarnation
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, MirrorError
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.preflight.findings import Level
from shallow_mirror.streaming.runs import CycleDetector, Mirror
from shallow_mirror.streaming.runs.target_logs import recorded_ends


class Verdict(enum.Enum):
    STOPS = "the sentence is why it stops"
    WARNS = "it passes, with the sentence as a warning"
    PASSES = "it passes, without the sentence"


class QueryStartsError(Exception):
    """The start is over."""


class SparkOfStart:
    """What the start of a mirror asks of a session; its query is never begun."""

    version = "4.2"
    defaultParallelism = 2  # noqa: N815 - Spark's name

    def __init__(self) -> None:
        self.sparkContext = self.dataSource = self
        self.environment: dict[str, str] = {}

    def getConf(self) -> Mapping[str, str]:  # noqa: N802 - Spark's name
        return {}

    def createDataFrame(self, rows: object, schema: str) -> None: ...  # noqa: N802 - Spark's name

    def register(self, source: object) -> None: ...

    @property
    def readStream(self) -> object:  # noqa: N802 - Spark's name
        raise QueryStartsError


@dataclass(frozen=True, kw_only=True)
class Case:
    """`arrange` prepares the clusters and returns settings of the mirror file. `preflight` and `run` are about `sentence`."""

    arrange: Callable[[Planned], Mapping[str, Any]]
    sentence: str
    preflight: Verdict
    run: Verdict
    available_now: bool = True


def refused(arrange: Callable[[Planned], Mapping[str, Any]], sentence: str) -> Case:
    return Case(arrange=arrange, sentence=sentence, preflight=Verdict.STOPS, run=Verdict.STOPS)


def target_with(**settings: str) -> Callable[[Planned], Mapping[str, Any]]:
    """Return what creates the target topic with these settings."""

    def arrange(planned: Planned) -> Mapping[str, Any]:
        planned.topic("orders", 1, **settings)
        return {}

    return arrange


def fewer_partitions(planned: Planned) -> Mapping[str, Any]:
    planned.source.create_topic("orders", 2)
    planned.target.create_topic("orders", 1, **OPEN)
    return {}


def not_created(planned: Planned) -> Mapping[str, Any]:
    planned.source.create_topic("orders", 1)
    return {"topics": {"create": False}}


def colliding_name(planned: Planned) -> Mapping[str, Any]:
    planned.source.create_topic("orders.eu")
    planned.target.create_topic("orders_eu")
    return {}


def name_too_long_when_renamed(planned: Planned) -> Mapping[str, Any]:
    planned.source.create_topic("a" * 240)
    return {"topics": {"target_name": "{source}.copy.{topic}"}}


def internal_name(planned: Planned) -> Mapping[str, Any]:
    planned.topic("orders")
    return {"topics": {"target_name": "__{topic}"}}


def one_cluster(planned: Planned) -> Mapping[str, Any]:
    planned.source.create_topic("orders")
    return {"target": {"client": {"bootstrap.servers": planned.source.bootstrap}}}


def mirrored_back(planned: Planned) -> Mapping[str, Any]:
    planned.topic("orders")
    aliases = {"source": {"alias": "west"}, "target": {"alias": "east"}}
    back = runs.config(planned.folder, planned.target.bootstrap, planned.source.bootstrap, ["orders"], mirror="back", **aliases)
    CycleDetector(back, source_cluster_id="west-id", target_cluster_id="east-id").register({"orders": "orders"})
    return {}


def newer_target(planned: Planned) -> Mapping[str, Any]:
    planned.topic("orders", 1, **{"min.insync.replicas": "2"})
    planned.target.alter_responses("ApiVersions", _offer_produce_of_3_7)
    return {}


def _offer_produce_of_3_7(body: Any) -> None:
    for api_key in body.api_keys:
        if api_key.api_key == 0:
            api_key.max_version = 10


def controller(side: str) -> Callable[[Planned], Mapping[str, Any]]:
    def arrange(planned: Planned) -> Mapping[str, Any]:
        cluster: StrictCluster = getattr(planned, side)
        planned.topic("orders")
        cluster.alter_responses("ApiVersions", _offer_what_controllers_do)
        return {}

    return arrange


def _offer_what_controllers_do(body: Any) -> None:
    """Drop Produce, Metadata and others; add BrokerRegistration."""
    body.api_keys = [api_key for api_key in body.api_keys if api_key.api_key in (1, 17, 18, 19, 32, 36)]
    registration = type(body.api_keys[0])(api_key=62, min_version=0, max_version=4)
    body.api_keys.append(registration)


def old_broker(planned: Planned) -> Mapping[str, Any]:
    def alter(body: Any) -> None:
        next(api_key for api_key in body.api_keys if api_key.api_key == 0).max_version = 8

    planned.topic("orders")
    planned.target.alter_responses("ApiVersions", alter)
    return {}


def permitting(operations: set[Operation]) -> Callable[[Any], None]:
    def alter(body: Any) -> None:
        for topic in body.topics:
            topic.authorized_operations = operations

    return alter


def permitted(side: str, operations: set[Operation]) -> Callable[[Planned], Mapping[str, Any]]:
    def arrange(planned: Planned) -> Mapping[str, Any]:
        planned.topic("orders")
        getattr(planned, side).alter_responses("Metadata", permitting(operations))
        return {}

    return arrange


def responding(side: str, api: str, code: int, *topic_partitions: tuple[str, int]) -> Callable[[Planned], Mapping[str, Any]]:
    def arrange(planned: Planned) -> Mapping[str, Any]:
        planned.topic("orders")
        getattr(planned, side).change_always(api, error(code, *topic_partitions))
        return {"mirror": "m"}

    return arrange


def hidden_topic(planned: Planned) -> Mapping[str, Any]:
    planned.source.change_always("Metadata", error(29, ("secret", -1)))
    return {"topics": {"include": ["secret"]}}


def excluded_topic_that_is_hidden(planned: Planned) -> Mapping[str, Any]:
    planned.topic("orders")
    planned.source.change_always("Metadata", error(29, ("secret", -1)))
    return {"topics": {"include": ["orders", "secret"], "exclude": ["secret"]}}


def nothing_that_matches(planned: Planned) -> Mapping[str, Any]:
    planned.topic("orders")
    return {"topics": {"include": ["bills.*"]}}


def naming(*entries: str) -> Callable[[Planned], Mapping[str, Any]]:
    """Return what creates the topic orders on both clusters, and asks for others as well."""

    def arrange(planned: Planned) -> Mapping[str, Any]:
        planned.topic("orders")
        return {"topics": {"include": ["orders", *entries]}}

    return arrange


def filled_target(planned: Planned) -> Mapping[str, Any]:
    planned.topic("orders")
    planned.target.seed(("orders", 0), batch(0, 5))
    return {}


def forgotten_copies(planned: Planned) -> Mapping[str, Any]:
    """With an aborted transaction behind them, as a mirror leaves it that was killed."""
    planned.topic("orders")
    config = planned.config()
    mirrored_up_to(planned, config, "orders", 5)
    former = kafka_text(planned.source.topic_ids["orders"])
    in_transaction: dict[str, Any] = {"attributes": 0x10, "producer_id": 1, "producer_epoch": 1}
    planned.target.seed(
        ("orders", 0),
        batch(0, 5, base_sequence=0, **in_transaction),
        marker(5, 1, 1),
        batch(6, 2, base_sequence=5, **in_transaction),
        marker(8, 0, 1),
    )
    planned.source.delete_topic("orders")
    planned.source.create_topic("orders")
    Controls.open(TableStorage(config.table_location)).forget([TopicIncarnation("orders", former)], [])
    return {}


def forgotten_copies_and_others(planned: Planned) -> Mapping[str, Any]:
    forgotten_copies(planned)
    planned.target.seed(("orders", 0), batch(9, 5))
    return {}


def copied(planned: Planned) -> None:
    """Create the topic orders, of which 5 of 8 records are copied."""
    planned.topic("orders")
    planned.source.seed(("orders", 0), batch(0, 5), batch(5, 3))
    planned.target.seed(("orders", 0), batch(0, 5))
    mirrored_up_to(planned, planned.config(), "orders", 5)


def handed_over(arrange: Callable[[Planned], Mapping[str, Any]]) -> Callable[[Planned], Mapping[str, Any]]:
    """Return what copies the topic orders, of which a migration moves the writers, and then does what `arrange` does."""

    def arrange_both(planned: Planned) -> Mapping[str, Any]:
        copied(planned)
        Controls.open(TableStorage(planned.config().table_location)).add("hand-over", ["orders"])
        return arrange(planned)

    return arrange_both


def changed_target(**settings: str) -> Callable[[Planned], Mapping[str, Any]]:
    def arrange(planned: Planned) -> Mapping[str, Any]:
        planned.target.log("orders").configs.update(settings)
        return {}

    return arrange


def deleted_target(planned: Planned) -> Mapping[str, Any]:
    planned.target.delete_topic("orders")
    return {}


def recreated_target(planned: Planned) -> Mapping[str, Any]:
    planned.target.delete_topic("orders")
    planned.target.create_topic("orders")
    return {}


def other_target_name(planned: Planned) -> Mapping[str, Any]:
    copied(planned)
    return {"topics": {"target_name": "copy.{topic}"}}


def without_write(planned: Planned) -> Mapping[str, Any]:
    planned.target.alter_responses("Metadata", permitting({Operation.DESCRIBE, Operation.READ}))
    return {}


def without_read(planned: Planned) -> Mapping[str, Any]:
    planned.source.alter_responses("Metadata", permitting({Operation.DESCRIBE}))
    return {}


def hidden_target(planned: Planned) -> Mapping[str, Any]:
    planned.target.change_always("Metadata", error(29, ("orders", -1)))
    return {}


def hidden_target_settings(planned: Planned) -> Mapping[str, Any]:
    planned.target.change_always("DescribeConfigs", error(29, ("orders", -1)))
    return {}


def truncated_target(planned: Planned) -> Mapping[str, Any]:
    copied(planned)
    planned.target.log("orders", 0).truncate(2)
    return {}


def truncated_source(planned: Planned) -> Mapping[str, Any]:
    copied(planned)
    planned.source.log("orders", 0).truncate(2)
    return {}


def expired_source(planned: Planned) -> Mapping[str, Any]:
    copied(planned)
    planned.source.log("orders", 0).log_start_offset = 7
    return {}


def recreated_source(planned: Planned) -> Mapping[str, Any]:
    copied(planned)
    planned.source.delete_topic("orders")
    planned.source.create_topic("orders")
    return {}


def failed_over(planned: Planned) -> Mapping[str, Any]:
    copied(planned)
    Controls.open(TableStorage(planned.config().table_location)).add("fail-over", ["orders"])
    return {}


def despite_data_loss(arrange: Callable[[Planned], Mapping[str, Any]]) -> Callable[[Planned], Mapping[str, Any]]:
    return lambda planned: {**arrange(planned), "read": {"on_data_loss": "continue"}}


def isolating(arrange: Callable[[Planned], Mapping[str, Any]]) -> Callable[[Planned], Mapping[str, Any]]:
    return lambda planned: {**arrange(planned), "on_error": "isolate"}


def after_copying(arrange: Callable[[Planned], Mapping[str, Any]]) -> Callable[[Planned], Mapping[str, Any]]:
    def arrange_both(planned: Planned) -> Mapping[str, Any]:
        copied(planned)
        return arrange(planned)

    return arrange_both


def preserved_with(**settings: str) -> Callable[[Planned], Mapping[str, Any]]:
    """Return what leaves a preserved topic, and then changes settings of the target topic."""

    def arrange(planned: Planned) -> Mapping[str, Any]:
        planned.topic("orders", 1, **(OPEN | {"message.timestamp.before.max.ms": str((1 << 63) - 1)}))
        planned.target.broker_configs |= {"producer.id.expiration.ms": "86400000", "connections.max.idle.ms": "600000"}
        planned.target.log("orders").configs["unclean.leader.election.enable"] = "false"
        planned.source.seed(("orders", 0), batch(0, 5))
        planned.target.seed(("orders", 0), batch(0, 5, base_sequence=0, producer_id=70, producer_epoch=0))
        mirrored_up_to(planned, planned.config(), "orders", 5, shared_producer_id=70)
        planned.target.log("orders").configs.update(settings)
        return {"topics": {"offsets": {"orders": "preserved"}}}

    return arrange


def preserved_until_now(undecided_value: bytes) -> Callable[[Planned], Mapping[str, Any]]:
    """Return what leaves a preserved topic with one record that no decision names, and sets it to translated."""
    shared: dict[str, Any] = {"producer_id": 70, "producer_epoch": 0}

    def arrange(planned: Planned) -> Mapping[str, Any]:
        planned.topic("orders")
        planned.source.seed(("orders", 0), batch(0, 5), batch(5, 1, payload=record(0, value=b"six")))
        placed = batch(5, 1, base_sequence=5, payload=record(0, value=undecided_value), **shared)
        planned.target.seed(("orders", 0), batch(0, 5, base_sequence=0, **shared), placed)
        mirrored_up_to(planned, planned.config(), "orders", 5, shared_producer_id=70)
        return {}

    return arrange


def large_batch(planned: Planned) -> Mapping[str, Any]:
    planned.topic("orders", 1, **{"max.message.bytes": "200"})
    planned.source.seed(("orders", 0), batch(0, 1, payload=b"x" * 900))
    return {}


def old_batch(planned: Planned) -> Mapping[str, Any]:
    planned.topic("orders", 1, **{"message.timestamp.before.max.ms": "3600000"})
    planned.source.seed(("orders", 0), batch(0, 1))
    return {}


def short_transactions(planned: Planned) -> Mapping[str, Any]:
    planned.topic("orders")
    planned.target.broker_configs["transaction.max.timeout.ms"] = "59999"
    return {}


def short_metadata(limit: int) -> Callable[[Planned], Mapping[str, Any]]:
    """Return what lowers the limit of the metadata of offsets, which receipts are."""

    def arrange(planned: Planned) -> Mapping[str, Any]:
        planned.topic("orders")
        planned.target.broker_configs["offset.metadata.max.bytes"] = str(limit)
        return {}

    return arrange


def hidden_broker_settings(planned: Planned) -> Mapping[str, Any]:
    planned.target.change_always("DescribeConfigs", error(31, ("1", -1)))
    return short_metadata(100)(planned)


CASES = {
    "a target that recompresses": refused(target_with(**{"compression.type": "zstd"}), "has compression.type=zstd: the broker"),
    "a target that recompresses, and was handed over": Case(
        arrange=handed_over(changed_target(**{"compression.type": "zstd"})),
        sentence="compression.type",
        preflight=Verdict.PASSES,
        run=Verdict.PASSES,
    ),
    "a target that was handed over and deleted": Case(
        arrange=handed_over(deleted_target), sentence="was deleted", preflight=Verdict.PASSES, run=Verdict.PASSES
    ),
    "a target that was handed over and created again": Case(
        arrange=handed_over(recreated_target), sentence="created again", preflight=Verdict.PASSES, run=Verdict.PASSES
    ),
    "no Write of a target that was handed over": Case(
        arrange=handed_over(without_write), sentence="grant Write on topic", preflight=Verdict.PASSES, run=Verdict.PASSES
    ),
    "no Read of a source that was handed over": Case(
        arrange=handed_over(without_read), sentence="grant Read on topic", preflight=Verdict.PASSES, run=Verdict.PASSES
    ),
    "a target that was handed over, and whose settings are hidden": Case(
        arrange=handed_over(hidden_target_settings), sentence="AUTHORIZATION", preflight=Verdict.PASSES, run=Verdict.PASSES
    ),
    "a hidden target that was handed over": Case(
        arrange=handed_over(hidden_target), sentence="AUTHORIZATION", preflight=Verdict.PASSES, run=Verdict.PASSES
    ),
    "fewer partitions": refused(fewer_partitions, "has fewer partitions (1) than source topic orders (2): add partitions"),
    "a missing topic": refused(not_created, "(for source topic orders) does not exist and topics.create is false: create it"),
    "a name that collides": refused(
        colliding_name, "cannot be created: it collides with topic orders_eu, and brokers refuse names that differ in '.' and '_'"
    ),
    "a name that becomes too long": refused(name_too_long_when_renamed, "has 250 characters, brokers allow 249"),
    "an internal name": refused(internal_name, "names that begin with __ are internal"),
    "one cluster twice": refused(one_cluster, "source east and target west are one cluster, and topics.target_name"),
    "a mirror in the other direction": refused(mirrored_back, "source topic orders is a copy of orders made by mirror back"),
    "more replicas in sync than there are": refused(
        target_with(**{"min.insync.replicas": "2"}), "has min.insync.replicas=2, more than its 1 replicas: nothing can be written"
    ),
    "more replicas in sync than there are, since Kafka 3.7": Case(
        arrange=newer_target, sentence="min.insync.replicas", preflight=Verdict.PASSES, run=Verdict.PASSES
    ),
    "a controller as the source": refused(controller("source"), "is the address of a KRaft controller, not of a broker"),
    "a controller as the target": refused(controller("target"), "is the address of a KRaft controller, not of a broker"),
    "an old broker": refused(old_broker, "is too old: source and target need Kafka 2.8 or later; it offers Produce 0 to 8"),
    "no Read of the source": refused(
        permitted("source", {Operation.DESCRIBE}), "source topic orders: TOPIC_AUTHORIZATION_FAILED: grant Read on topic orders"
    ),
    "no Write of the target": refused(
        permitted("target", {Operation.DESCRIBE, Operation.READ}),
        "target topic orders: TOPIC_AUTHORIZATION_FAILED: grant Write on topic orders",
    ),
    "no Write of transactional ids": refused(responding("target", "EndTxn", 53), "grant Write on transactional id m-0"),
    "no Read of groups": refused(responding("target", "Heartbeat", 30), "grant Read on group m-0"),
    "settings of the target are hidden": refused(
        responding("target", "DescribeConfigs", 29, ("orders", -1)), "reading the settings of topic orders: the cluster at"
    ),
    "a named topic that is hidden": refused(
        hidden_topic, "source topic secret: TOPIC_AUTHORIZATION_FAILED: grant Read on topic secret"
    ),
    "a named topic that is hidden and excluded": Case(
        arrange=excluded_topic_that_is_hidden, sentence="secret", preflight=Verdict.PASSES, run=Verdict.PASSES
    ),
    "no topic that matches": refused(
        nothing_that_matches, "no topic of the source matches bills.* (topics.include), so nothing is copied before one does"
    ),
    # Without --available-now a run waits for topics that are yet to be created.
    "no topic that matches yet": Case(
        arrange=nothing_that_matches,
        sentence="no topic of the source matches bills.* (topics.include), so nothing is copied before one does",
        preflight=Verdict.STOPS,
        run=Verdict.WARNS,
        available_now=False,
    ),
    # With --available-now the start passes, and the end of the run does not.
    "a name without a topic": Case(
        arrange=naming("bills"),
        sentence="topics.include: bills: the source has no such topic, or hides it because DESCRIBE is not granted",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "a name without a topic yet": Case(
        arrange=naming("bills"),
        sentence="topics.include: bills: the source has no such topic, or hides it because DESCRIBE is not granted",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
        available_now=False,
    ),
    "a pattern without a topic": Case(
        arrange=naming("bills.*"),
        sentence="topics.include: bills.*: the source has no such topic, or hides it because DESCRIBE is not granted",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "a target that others have written to": Case(
        arrange=filled_target,
        sentence="target topic orders was written to by others than this mirror",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "copies of a forgotten topic": Case(
        arrange=forgotten_copies,
        sentence="was written to by others",
        preflight=Verdict.PASSES,
        run=Verdict.PASSES,
    ),
    "copies of a forgotten topic, and records of others": Case(
        arrange=forgotten_copies_and_others,
        sentence="target topic orders was written to by others than this mirror",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "a target that has lost copies": refused(
        truncated_target, "target orders-0: its log ended at offset 2, but records copied before reach offset 5"
    ),
    "preserved offsets that end, with other records at the target": refused(
        preserved_until_now(b"seven"),
        "topics.offsets: orders was preserved until now, and target partition orders-0 does not hold what source partition orders-0 "
        "has from offset 5 on",
    ),
    "preserved offsets that end, with a copy that was not decided": Case(
        arrange=preserved_until_now(b"six"),
        sentence="was preserved until now and holds 1 record from offset 5 on without a decision: counted as copied",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "a mirror that was failed over": refused(failed_over, "its topics are in use at west, and it copies nothing any more"),
    "a source topic that was created again": refused(
        recreated_source,
        "set read.on_data_loss: continue and start again, or close the former topic",
    ),
    "a source topic that was created again, whatever is lost": Case(
        arrange=despite_data_loss(recreated_source),
        sentence="read.on_data_loss is continue: what it holds now is mirrored from its start",
        preflight=Verdict.WARNS,
        run=Verdict.PASSES,
    ),
    # The planner of the run finds these: the start passes.
    "a source log that was truncated": Case(
        arrange=truncated_source,
        sentence="the log ends at 2, below the position: it was truncated (an unclean leader election, a lost disk). To skip what",
        preflight=Verdict.STOPS,
        run=Verdict.PASSES,
    ),
    "a source log that was truncated, whatever is lost": Case(
        arrange=despite_data_loss(truncated_source),
        sentence="read.on_data_loss is continue: the mirror continues at its position",
        preflight=Verdict.WARNS,
        run=Verdict.PASSES,
    ),
    "a source that no longer has what comes next": Case(
        arrange=expired_source,
        sentence="removed it before it was copied. To skip what is lost, set read.on_data_loss: continue",
        preflight=Verdict.STOPS,
        run=Verdict.PASSES,
    ),
    "a source that no longer has what comes next, whatever is lost": Case(
        arrange=despite_data_loss(expired_source),
        sentence="read.on_data_loss is continue: the offsets before are recorded as expired",
        preflight=Verdict.WARNS,
        run=Verdict.PASSES,
    ),
    "a target that was deleted": refused(after_copying(deleted_target), "target topic orders (for orders) was deleted"),
    "a target that was deleted, and is left out": Case(
        arrange=isolating(after_copying(deleted_target)),
        sentence="target topic orders (for orders) was deleted",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "a target that was created again, and is left out": Case(
        arrange=isolating(after_copying(recreated_target)),
        sentence="target topic orders (for orders) was deleted and created again",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "a target of another name, whatever is left out": refused(
        isolating(other_target_name), "source topic orders was mirrored to orders until now"
    ),
    "a source topic that was created again, and is left out": Case(
        arrange=isolating(recreated_source),
        sentence="was deleted and created again",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    # The planner of the run finds it.
    "a source log that was truncated, and is left out": Case(
        arrange=isolating(truncated_source),
        sentence="the log ends at 2, below the position: it was truncated",
        preflight=Verdict.WARNS,
        run=Verdict.PASSES,
    ),
    "a source that no longer has what comes next, and is left out": Case(
        arrange=isolating(expired_source),
        sentence="removed it before it was copied. To skip what is lost, set read.on_data_loss: continue",
        preflight=Verdict.WARNS,
        run=Verdict.PASSES,
    ),
    "a preserved topic with a changed setting": refused(
        preserved_with(**{"message.timestamp.type": "LogAppendTime"}), "has message.timestamp.type=LogAppendTime: with preserved"
    ),
    "a preserved topic with a changed setting that is left out": Case(
        arrange=isolating(preserved_with(**{"message.timestamp.type": "LogAppendTime"})),
        sentence="has message.timestamp.type=LogAppendTime: with preserved",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "a preserved topic that recompresses and is left out": Case(
        arrange=isolating(preserved_with(**{"compression.type": "zstd"})),
        sentence="has compression.type=zstd: the broker",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "a target that stamps records": Case(
        arrange=target_with(**{"message.timestamp.type": "LogAppendTime"}),
        sentence="has message.timestamp.type=LogAppendTime: records get the target's append time",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    # The rules for batches are applied by the run while it copies: the start passes.
    "a batch that is too large": Case(
        arrange=large_batch, sentence="max.message.bytes", preflight=Verdict.STOPS, run=Verdict.PASSES
    ),
    "a batch that is too old": Case(
        arrange=old_batch, sentence="message.timestamp.before.max.ms=3600000", preflight=Verdict.STOPS, run=Verdict.PASSES
    ),
    "brokers that take no receipts": refused(
        short_metadata(MAX_RECEIPT_BYTES - 1),
        f"has offset.metadata.max.bytes={MAX_RECEIPT_BYTES - 1}: receipts of transactions need up to {MAX_RECEIPT_BYTES} bytes: set "
        f"offset.metadata.max.bytes to {MAX_RECEIPT_BYTES} or more on all brokers of the target (the default is 4096)",
    ),
    "brokers that take receipts, and no registration": Case(
        arrange=short_metadata(MAX_RECEIPT_BYTES),
        sentence="offset.metadata.max.bytes",
        preflight=Verdict.WARNS,
        run=Verdict.WARNS,
    ),
    "brokers that take every registration": Case(
        arrange=short_metadata(MAX_NOTE_BYTES),
        sentence="offset.metadata.max.bytes",
        preflight=Verdict.PASSES,
        run=Verdict.PASSES,
    ),
    # Nobody may say: the run finds out, and names the setting then.
    "settings of brokers are hidden": Case(
        arrange=hidden_broker_settings, sentence="offset.metadata.max.bytes=", preflight=Verdict.PASSES, run=Verdict.PASSES
    ),
    "brokers that end transactions sooner": refused(
        short_transactions, "write.transaction_timeout_ms: 60000 is above transaction.max.timeout.ms of the target's brokers"
    ),
}


def verdict_of_preflight(config: MirrorConfig, sentence: str) -> Verdict:
    try:
        report = preflight_mirror(config, sample_bytes=None)
    except ConfigError as refusal:
        return _stopped(refusal, sentence)
    stops = [*report.stops(), *report.refusals()]
    assert report.is_fine is not bool(stops)
    if any(sentence in _joined(text) for text in stops):
        return Verdict.STOPS
    assert report.is_fine, stops
    doubts = [f"{finding.subject}: {finding.what}" for finding in report.findings if finding.level is Level.DOUBT]
    return Verdict.WARNS if any(sentence in _joined(text) for text in doubts) else Verdict.PASSES


def _stopped(refusal: MirrorError, sentence: str) -> Verdict:
    assert sentence in str(refusal)
    return Verdict.STOPS


def _joined(text: str) -> str:
    """Return a finding as a sentence of a run, which has no colon behind its topic."""
    head, _, rest = text.partition(": ")
    return f"{head} {rest} / {text}"


def verdict_of_run(config: MirrorConfig, case: Case, warnings: Callable[[], list[str]]) -> Verdict:
    sentence = case.sentence
    try:
        Mirror(config).run(SparkOfStart(), available_now=case.available_now)
    except MirrorError as refusal:
        return _stopped(refusal, sentence)
    except QueryStartsError:
        return Verdict.WARNS if any(sentence in text for text in warnings()) else Verdict.PASSES
    raise AssertionError("the start has no end")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_preflight_and_the_start_of_a_run_say_the_same(
    planned: Planned, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    monkeypatch.setattr(recorded_ends, "LOSS_PATIENCE_MS", 0)
    caplog.set_level(logging.WARNING)
    config = planned.config(**case.arrange(planned))
    verdict = verdict_of_preflight(config, case.sentence)
    caplog.clear()
    of_run = verdict_of_run(config, case, lambda: [record.getMessage() for record in caplog.records])
    assert (verdict, of_run) == (case.preflight, case.run)
