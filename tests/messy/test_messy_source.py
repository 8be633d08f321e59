"""All of it at once, on real clusters: what a read_committed consumer sees of a messy source is on the target, in the same order,
and the offset map leads there from every offset."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import TwoClusters
from tests.messy.corpus import (
    CODECS,
    SMALL_TARGET_BYTES,
    Writers,
    producer,
    write,
    write_compacted,
    write_cut,
    write_large,
    write_stamped_by_the_broker,
)
from tests.support.mirror_runs import conf_file, create_topic, positions, read_partitions, wait_for_run
from tests.support.translated_copies import assert_every_offset_is_translated, without_offsets
from tests.verify.mirror_main import catch_up, mirror

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.types import SegmentKind
from shallow_mirror.verify import verify_mirror

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(600)]

PARTITIONS = 3


@pytest.mark.parametrize("steps", [150, pytest.param(3000, marks=pytest.mark.long)])
def test_a_messy_source_arrives_record_by_record_and_every_offset_is_translated(
    stoppable_clusters: TwoClusters, tmp_path: Path, topic_name: str, steps: int
) -> None:
    source, target, name = stoppable_clusters.source.bootstrap, stoppable_clusters.target.bootstrap, topic_name[-60:]
    compacted, cut, stamped, large, mixed = (f"{name}.{kind}" for kind in ("compacted", "cut", "stamped", "large", "mixed"))
    write_compacted(source, compacted)
    write_cut(source, cut, cut_at=17)
    write_stamped_by_the_broker(source, stamped)
    write_large(source, large)
    create_topic(target, large, settings={"max.message.bytes": str(SMALL_TARGET_BYTES)})
    create_topic(source, mixed, PARTITIONS)
    writers = Writers(source, mixed, PARTITIONS)
    writers.steps(steps)
    conf = conf_file(tmp_path, source, target, [f"{name}.*"])
    settings = MirrorConfig.load(conf)
    with mirror(conf) as process:
        wait_for_run(process, "the first records", lambda: positions(settings).get((mixed, 0)))
        writers.steps(steps)
        writers.abort_many(steps // 3, partition=0)
        process.kill()
    writers.steps(steps)
    catch_up(conf)
    topic_partitions = [(compacted, partition) for partition in range(len(CODECS) + 1)] + [(cut, 0), (stamped, 0), (large, 0)]
    topic_partitions += [(mixed, partition) for partition in range(PARTITIONS)]
    originals, copies = read_partitions(source, topic_partitions), read_partitions(target, topic_partitions)
    offset_map = OffsetMap.open(settings.tables)
    for topic_partition in topic_partitions:
        assert without_offsets(copies[topic_partition]) == without_offsets(originals[topic_partition]), topic_partition
        assert_every_offset_is_translated(offset_map, topic_partition, originals[topic_partition], copies[topic_partition])
    kinds = {row["kind"] for row in offset_map.settled_rows().to_pylist()}
    assert kinds == {SegmentKind.DATA, SegmentKind.GAP, SegmentKind.COMMIT, SegmentKind.ABORT, SegmentKind.ABORTED}
    report = verify_mirror(settings)
    assert report.is_equal, report.sentences()
    assert report.record_count == sum(map(len, originals.values()))


def test_read_uncommitted_copies_what_was_aborted_and_what_is_still_open_at_once(
    stoppable_clusters: TwoClusters, tmp_path: Path, topic_name: str
) -> None:
    source, target = stoppable_clusters.source.bootstrap, stoppable_clusters.target.bootstrap
    create_topic(source, topic_name)
    writer = producer(source, topic_name, "lz4", **{"transactional.id": f"writer-of-{topic_name}"})
    writer.init_transactions(30)
    for end in (writer.commit_transaction, writer.abort_transaction):
        writer.begin_transaction()
        write(writer, topic_name, range(5))
        end(30)
    writer.begin_transaction()
    write(writer, topic_name, range(5, 10))
    conf = conf_file(tmp_path, source, target, [topic_name], read={"isolation_level": "read_uncommitted"})
    catch_up(conf)
    assert [record.key for record in read_partitions(target, [(topic_name, 0)])[topic_name, 0]] == [
        f"k{n}".encode() for n in (*range(5), *range(5), *range(5, 10))
    ]
    kinds = [row["kind"] for row in OffsetMap.open(MirrorConfig.load(conf).tables).settled_rows().to_pylist()]
    assert (kinds.count(SegmentKind.ABORT), kinds.count(SegmentKind.ABORTED)) == (1, 0)
    report = verify_mirror(MirrorConfig.load(conf))
    assert (report.is_equal, report.record_count) == (True, 15)
    writer.abort_transaction(30)
