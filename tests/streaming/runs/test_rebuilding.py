"""What a source holds that cannot be copied as it is, through Spark: record by record and offset by offset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.messy.corpus import (
    CODECS,
    SMALL_TARGET_BYTES,
    clean_at_once,
    write_compacted,
    write_cut,
    write_large,
    write_stamped_by_the_broker,
)
from tests.support.mirror_runs import catch_up, config, create_topic, read_partitions
from tests.support.translated_copies import assert_every_offset_is_translated, without_offsets

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.verify import verify_mirror

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(400)]


def rebuilt_partitions(settings: MirrorConfig) -> set[tuple[str, int]]:
    rows = OffsetMap.open(settings.tables).settled_rows().to_pylist()
    return {(row["source_topic"], row["source_partition"]) for row in rows if row["rebuilt_batch_count"]}


def test_what_cannot_be_copied_as_it_is_comes_rebuilt_through_spark_as_well(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target, name = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name[-60:]
    compacted, cut, stamped, large = (f"{name}.{kind}" for kind in ("compacted", "cut", "stamped", "large"))
    clean_at_once(source)
    write_compacted(source, compacted)
    write_cut(source, cut, cut_at=17)
    write_stamped_by_the_broker(source, stamped)
    write_large(source, large)
    create_topic(target, large, settings={"max.message.bytes": str(SMALL_TARGET_BYTES)})
    topic_partitions = [(compacted, partition) for partition in range(len(CODECS) + 1)] + [(cut, 0), (stamped, 0), (large, 0)]
    settings = config(tmp_path, source, target, [f"{name}.*"], read={"transfer": "through-spark"})
    catch_up(settings, spark)
    offset_map = OffsetMap.open(settings.tables)
    originals, copies = read_partitions(source, topic_partitions), read_partitions(target, topic_partitions)
    for topic_partition in topic_partitions:
        assert without_offsets(copies[topic_partition]) == without_offsets(originals[topic_partition]), topic_partition
        assert_every_offset_is_translated(offset_map, topic_partition, originals[topic_partition], copies[topic_partition])
    assert rebuilt_partitions(settings) == set(topic_partitions)
    report = verify_mirror(settings)
    assert report.is_equal, report.sentences()
    assert report.record_count == sum(map(len, originals.values()))
