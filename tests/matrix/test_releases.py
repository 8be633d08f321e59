"""Every release that a mirror is tried with, as its source and as its target, and formats that only the oldest still writes."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from tests.fakes.raw_client import RawClient
from tests.matrix import old_formats
from tests.matrix.lost_mirror import lose_mirror
from tests.matrix.releases import ALL, BEFORE_KIP_890, NEWEST, OLDEST, Brokers, Release
from tests.support.mirror_runs import conf_file, read_partitions
from tests.support.translated_copies import assert_every_offset_is_translated, without_offsets
from tests.verify.mirror_main import catch_up

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.demo.checker import compare
from shallow_mirror.demo.map_rows import RowTranslation, load_rows
from shallow_mirror.demo.traffic import TOPICS
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import Step
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.operations.recover import UnknownState, inspect
from shallow_mirror.sinks.kafka.protocol import ReceiptEvidence, TxnFate
from shallow_mirror.types import TopicPartition
from shallow_mirror.verify import verify_mirror

pytestmark = pytest.mark.brokers

IN_CI = (NEWEST, OLDEST)
PAIRS = [
    pytest.param(source, target, id=f"{source} to {target}", marks=() if (source, target) == IN_CI else pytest.mark.long)
    for source in ALL
    for target in ALL
]


@pytest.mark.long
@pytest.mark.parametrize("release", [BEFORE_KIP_890, NEWEST], ids=str)
def test_a_release_has_the_transaction_version_of_its_name(brokers: Brokers, release: Release) -> None:
    with RawClient(brokers["target", release].bootstrap) as client:
        response = client.ask("ApiVersions", client_software_name="tests", client_software_version="1")
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert levels.get("transaction.version", 0) == release.transaction_version


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_messy_traffic_is_equal_record_by_record_although_the_mirror_is_lost_before_and_after_its_decision(
    brokers: Brokers, source: Release, target: Release, tmp_path: Path
) -> None:
    written = brokers.written(source)
    ends = (brokers["source", source].bootstrap, brokers["target", target].bootstrap)
    conf = conf_file(
        tmp_path,
        *ends,
        [r"orders\..*"],
        mirror=f"from-{source}",
        source={"alias": str(source)},
        topics={"target_name": "{source}.{topic}"},
        read={"micro_batch_bytes": 1 << 20},
    )
    settings = MirrorConfig.load(conf)
    for point in ("RunSlots", "Decide"):
        lose_mirror(conf, point)
    reports = inspect(settings)
    assert {report.receipt for report in reports} == {ReceiptEvidence.PENDING}
    assert {report.fate for report in reports} == {None if target == OLDEST else TxnFate.COMMITTED}
    assert all(
        (report.coordinator is UnknownState.BEFORE_KAFKA_3) is (target == OLDEST) and not report.needs_choice
        for report in reports
    )
    catch_up(conf)
    copies = {topic: f"{source}.{topic}" for topic in TOPICS}
    compared = compare(*ends, copies, RowTranslation(load_rows(Path(settings.tables))))
    assert not compared.differences
    assert dict(compared.source_records) == {topic.topic: topic.visible_records for topic in written.topics}
    report = verify_mirror(settings)
    assert report.is_equal, report.sentences()
    assert report.record_count == compared.translated_offsets == sum(compared.source_records.values())
    assert_a_group_goes_on_with_the_next_record(settings, ends, *next(iter(copies.items())))


def assert_a_group_goes_on_with_the_next_record(settings: MirrorConfig, ends: tuple[str, str], topic: str, copy: str) -> None:
    originals, copied = (
        read_partitions(bootstrap, [(name, 0)])[name, 0] for bootstrap, name in zip(ends, (topic, copy), strict=True)
    )
    middle, group = len(originals) // 2, f"readers.{copy}"
    with closing(GroupClient(settings.source.client, "the source")) as view:
        assert view.commit(group, {TopicPartition(topic, 0): (originals[middle].offset, "")}) == {}
    report = sync_groups(settings, pattern=re.escape(group), is_applied=True)
    assert [partition.step for partition in report.partitions] == [Step.COMMITTED]
    with closing(GroupClient(settings.target.client, "the target")) as view:
        (committed,) = view.committed([group])[group]
    assert committed.topic_partition == TopicPartition(copy, 0)
    assert committed.offset is not None
    assert without_offsets([record for record in copied if record.offset >= committed.offset]) == without_offsets(
        originals[middle:]
    )


def test_messages_of_old_formats_arrive_as_batches_record_by_record_with_their_times_and_offsets(
    brokers: Brokers, topic_name: str, tmp_path: Path
) -> None:
    source, target = brokers["target", OLDEST], brokers["target", NEWEST]
    aged, bare, stamped = (f"{topic_name[-60:]}.{kind}" for kind in ("aged", "bare", "stamped"))
    old_formats.write_aged(source, aged)
    old_formats.write_bare(source, bare)
    old_formats.write_stamped(source, stamped)
    expected = {aged: {0, 1, 2}, bare: {0, 1}, stamped: {1}}
    topic_partitions = [(topic, partition) for topic in expected for partition in range(len(old_formats.CODECS))]
    assert {topic_partition: set(old_formats.stored_magics(source, topic_partition)) for topic_partition in topic_partitions} == {
        topic_partition: expected[topic_partition[0]] for topic_partition in topic_partitions
    }
    conf = conf_file(tmp_path, source.bootstrap, target.bootstrap, list(expected))
    catch_up(conf)
    settings = MirrorConfig.load(conf)
    offset_map = OffsetMap.open(settings.tables)
    originals, copies = (read_partitions(node.bootstrap, topic_partitions) for node in (source, target))
    for topic_partition in topic_partitions:
        assert without_offsets(copies[topic_partition]) == without_offsets(originals[topic_partition]), topic_partition
        assert_every_offset_is_translated(offset_map, topic_partition, originals[topic_partition], copies[topic_partition])
        assert set(old_formats.stored_magics(target, topic_partition)) == {2}
    for is_deep in (False, True):
        report = verify_mirror(settings, is_deep=is_deep)
        assert report.is_equal, report.sentences()
        assert report.record_count == sum(map(len, originals.values()))
