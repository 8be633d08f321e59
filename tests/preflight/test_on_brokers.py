"""Real clusters: what preflight says is what the mirror then does, and until then nothing anywhere has changed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource
from deltalake import DeltaTable
from tests.conftest import TwoClusters
from tests.fakes.registry_server import RegistryServer
from tests.support import mirror_runs as runs
from tests.support.console_entry import console
from tests.support.mirror_runs import catch_up, create_topic, write, write_stamped
from tests.support.one_batch import one_batch_producer

from shallow_mirror.checkpoints.rows.schema import table_uri
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.preflight.findings import Level
from shallow_mirror.schemas import copy_schemas

pytestmark = pytest.mark.brokers

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HOUR_MS = 3_600_000
OPEN = {"message.timestamp.after.max.ms": "9223372036854775807"}


def produce(bootstrap: str, topic: str, codec: str, batches: int, *, txn_id: str | None = None) -> None:
    """`batches` record batches of 20 records; with a `txn_id` in transactions, the second of which is aborted."""
    in_txns = {} if txn_id is None else {"transactional.id": txn_id}
    producer = one_batch_producer(bootstrap, topic, **{"compression.type": codec}, **in_txns)
    if txn_id is not None:
        producer.init_transactions(30)
    for number in range(batches):
        if txn_id is not None:
            producer.begin_transaction()
        for n in range(20):
            producer.produce(topic, f"value {number} {n} " * 20, f"k{n}", partition=0)
        assert producer.flush(30) == 0
        if txn_id is not None:
            (producer.abort_transaction if number == 1 else producer.commit_transaction)(30)
            runs.wait_for_markers(bootstrap, topic)


def state_of(bootstrap: str, prefix: str) -> dict[str, Any]:
    """All topics and groups; settings and log ends of the topics that begin with `prefix`."""
    client, topics = runs.admin(bootstrap), runs.topics_of(bootstrap)
    ours = sorted(topic for topic in topics if topic.startswith(prefix))
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in ours]
    described = client.describe_configs(resources) if resources else {}
    return {
        "topics": topics,
        "settings": {
            resource.name: {name: entry.value for name, entry in made.result(30).items()} for resource, made in described.items()
        },
        "ends": {topic: runs.high_watermark(bootstrap, topic) for topic in ours},
        "groups": sorted(group.group_id for group in client.list_consumer_groups().result(30).valid),
    }


def test_what_it_says_is_what_the_mirror_then_does(
    two_clusters: TwoClusters, topic_name: str, tmp_path: Path, inline_streams: Any
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    for codec in CODECS:
        create_topic(source, f"{topic_name}-{codec}")
        produce(source, f"{topic_name}-{codec}", codec, 2)
    create_topic(source, f"{topic_name}-txns")
    produce(source, f"{topic_name}-txns", "lz4", 3, txn_id=f"writer-{topic_name}")
    create_topic(source, f"{topic_name}-stamped", settings={"message.timestamp.type": "LogAppendTime"})
    produce(source, f"{topic_name}-stamped", "lz4", 2)
    for bootstrap, settings in ((source, {}), (target, {"max.message.bytes": "3000"} | OPEN)):
        create_topic(bootstrap, f"{topic_name}-split", settings=settings)
    produce(source, f"{topic_name}-split", "none", 2)
    config = runs.config(tmp_path, source, target, [f"{topic_name}-.*"])
    before = state_of(target, topic_name)
    report = preflight_mirror(config, sample_bytes=None, is_sized=True)
    assert report.size is not None
    assert report.size.busiest_hour_bytes_per_s == report.size.last_hour_bytes_per_s > 0
    assert state_of(target, topic_name) == before
    assert list(tmp_path.iterdir()) == []
    assert report.is_fine, report.findings
    counts = {topic.topic.removeprefix(f"{topic_name}-"): topic.counts for topic in report.topics}
    for codec, name in (*zip(CODECS, CODECS, strict=True), ("lz4", "txns")):
        actual = counts[name]
        assert (actual.raw.batch_count, actual.raw.record_count, dict(actual.codecs)) == (2, 40, {codec: actual.raw})
    dropped = {kind.value: amount.batch_count for kind, amount in counts["txns"].dropped.items()}
    assert dropped == {"aborted": 1, "commit": 2, "abort": 1}
    assert [(counts[name].raw.batch_count, counts[name].rebuilt.batch_count) for name in ("stamped", "split")] == [(0, 2), (0, 2)]
    created = {topic.target.topic: topic.target.created_with for topic in report.topics if topic.target.created_with is not None}

    catch_up(config, inline_streams)
    done = DeltaTable(table_uri(config.tables, "micro_batches")).to_pyarrow_table().to_pylist()
    for name, counted in (("raw_batch_count", "raw"), ("rebuilt_batch_count", "rebuilt"), ("record_count", "data")):
        amounts = [getattr(topic.counts, counted) for topic in report.topics]
        field = "record_count" if name == "record_count" else "batch_count"
        assert sum(row[name] for row in done) == sum(getattr(amount, field) for amount in amounts)
    settings = state_of(target, topic_name)["settings"]
    assert {name: {key: settings[name][key] for key in made} for name, made in created.items()} == created

    after = preflight_mirror(config)
    assert (after.has_map, after.is_fine, after.backlog.offsets) == (True, True, 0)
    write(source, f"{topic_name}-none", ["one more"])
    later = preflight_mirror(config)
    assert (later.backlog.offsets, sum(topic.counts.raw.record_count for topic in later.topics)) == (1, 1)
    without_tables = runs.config(tmp_path / "elsewhere", source, target, [f"{topic_name}-.*"], mirror=config.mirror)
    (stop,) = [finding.what for finding in preflight_mirror(without_tables).findings if finding.level is Level.STOPS]
    assert f"the tables are new, but the target knows the transactional id {config.mirror}-0" in stop


def test_what_would_be_refused_is_reported_with_rule_and_offset_and_nothing_changes(
    two_clusters: TwoClusters, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    future, large, zstd = (f"{topic_name}-{name}" for name in ("future", "large", "zstd"))
    for topic, settings in (
        (future, {"message.timestamp.after.max.ms": str(HOUR_MS), "message.timestamp.before.max.ms": str(HOUR_MS)}),
        (large, {"max.message.bytes": "2000"} | OPEN),
        (zstd, {"compression.type": "zstd", "cleanup.policy": "compact"} | OPEN),
    ):
        create_topic(source, topic, settings=OPEN)
        create_topic(target, topic, settings=settings)
    now_ms = int(time.time() * 1000)
    write(source, future, ["now"])
    write_stamped(source, future, [("later", now_ms + 2 * HOUR_MS)])
    write_stamped(source, future, [("earlier", now_ms - 2 * HOUR_MS)])
    write(source, large, ["small"])
    write(source, large, ["x" * 5_000])
    conf = runs.conf_file(tmp_path, source, target, [f"{topic_name}-.*"])
    before = state_of(target, topic_name), state_of(source, topic_name)
    ended = console("preflight", str(conf), "--json", "--sample", "1000000")
    assert (ended.code, ended.slow_imports) == (1, "[]"), ended.stderr
    document = json.loads(ended.lines[0])
    assert (state_of(target, topic_name), state_of(source, topic_name)) == before
    assert [path.name for path in tmp_path.iterdir()] == ["mirror.yaml"]
    actual = {topic_document["topic"]: topic_document for topic_document in document["topics"]}
    rules = {
        (refusal["rule"].split(" of the target")[0], refusal["first"]["base_offset"]) for refusal in actual[future]["refusals"]
    }
    assert rules == {
        (f"records with timestamps beyond message.timestamp.after.max.ms={HOUR_MS}", 1),
        (f"records with timestamps beyond message.timestamp.before.max.ms={HOUR_MS}", 2),
    }
    (too_large,) = actual[large]["refusals"]
    assert too_large["rule"].startswith("one record that alone is larger than max.message.bytes=2000")
    assert [actual[topic]["raw"]["batch_count"] for topic in (future, large)] == [1, 1]
    stops = [finding for finding in document["findings"] if finding["level"] == "stops"]
    assert [(finding["subject"], finding["what"].split(":")[0]) for finding in stops] == [
        (f"target topic {zstd}", "has compression.type=zstd")
    ]
    assert any("has cleanup.policy=compact" in finding["what"] for finding in document["findings"])


def test_schema_ids_of_records_in_every_codec_are_compared_with_both_registries(
    two_clusters: TwoClusters, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    for codec in CODECS:
        producer = one_batch_producer(source, topic_name, **{"compression.type": codec})
        for number in range(20):
            producer.produce(topic_name, b"\0" + (1).to_bytes(4) + b"value", f"k{number}", partition=0)
        assert producer.flush(30) == 0
    with RegistryServer() as of_source, RegistryServer() as of_target:
        of_source.rules.register(f"{topic_name}-value", {"schema": '"int"'})
        schemas = {"source": {"url": of_source.url}, "target": {"url": of_target.url}}
        config = runs.config(tmp_path, source, target, [topic_name], schemas=schemas)
        before = preflight_mirror(config)
        assert copy_schemas(config, is_applied=True).is_done
        after = preflight_mirror(config)
    (lacking,), (having,) = before.schema_uses, after.schema_uses
    assert (lacking.topic, lacking.field, lacking.ids, lacking.missing) == (topic_name, "value", (1,), (1,))
    assert (lacking.with_ids, lacking.sampled) == (40, 40)
    assert [finding.subject for finding in before.findings if "lacks schema ids" in finding.what] == [f"values of {topic_name}"]
    assert (having.ids, having.missing, having.different) == ((1,), (), ())
