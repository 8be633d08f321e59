"""Archives of compacted, cut, stamped, large and legacy logs of every release, restored to others with smaller batches allowed."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.matrix import old_formats
from tests.matrix.releases import NEWEST, OLD, OLDEST, Brokers, Release
from tests.messy import corpus
from tests.support import archive_runs, restore_runs
from tests.support.mirror_runs import ReadRecord, create_topic, delete_records, read_partitions, wait_for_run
from tests.support.translated_copies import without_offsets
from tests.verify.mirror_main import REPOSITORY

from shallow_mirror.config import ArchiveConfig, RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.archive.status import gather_archive_status
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.verify import verify_restore

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(900)]

PartitionKey = tuple[str, int]
RUN_TIMEOUT_S = 200
MOST_BYTES = 4_000
"""`max.message.bytes` of target topics: most batches of the sources are larger."""
OFFSETS = ("translated", "preserved")
_NO_LIMIT = str((1 << 63) - 1)
OF_PRESERVED = {"message.timestamp.before.max.ms": _NO_LIMIT, "message.timestamp.after.max.ms": _NO_LIMIT, "retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class Archived:
    config: ArchiveConfig
    originals: Mapping[PartitionKey, list[ReadRecord]]

    def partitions_of(self, topic: str) -> int:
        return sum(name == topic for name, _ in self.originals)


def conf_file(folder: Path, name: str, document: Mapping[str, Any]) -> Path:
    conf = folder / f"{name}.yaml"
    conf.write_text(yaml.safe_dump(dict(document)), encoding="utf-8")
    return conf


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of the package for the block, without Spark."""
    line = [sys.executable, "-m", "tests.verify.mirror_main", *command]
    process = subprocess.Popen(line, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def require_end(process: subprocess.Popen[str]) -> None:
    _, output = process.communicate(timeout=RUN_TIMEOUT_S)
    assert process.returncode == 0, output[-4000:]


def archive_all(conf: Path) -> None:
    """Run the archive until it has all that the source shows now."""
    config = ArchiveConfig.load(conf)

    def has_caught_up() -> bool:
        with contextlib.suppress(ConfigError):  # no table yet
            topics = gather_archive_status(config).topics
            return bool(topics) and all(topic.lag_offsets == 0 for topic in topics)
        return False

    with running("archive", "run", str(conf)) as process:
        wait_for_run(process, "the end of the source", has_caught_up)
        process.terminate()
        require_end(process)


def written(node: LocalKafka, prefix: str, *, with_legacy: bool, with_compacted: bool) -> dict[str, int]:
    """Write the topics; return their partitions."""
    cut, stamped, large = (f"{prefix}.{kind}" for kind in ("cut", "stamped", "large"))
    corpus.write_cut(node.bootstrap, cut, cut_at=17)
    corpus.write_stamped_by_the_broker(node.bootstrap, stamped)
    corpus.write_large(node.bootstrap, large)
    topics = {cut: 1, stamped: 1, large: 1}
    if with_compacted:
        corpus.clean_at_once(node.bootstrap)
        corpus.write_compacted(node.bootstrap, f"{prefix}.compacted")
        topics[f"{prefix}.compacted"] = len(corpus.CODECS) + 1
    if with_legacy:
        for kind, write in (
            ("aged", old_formats.write_aged),
            ("bare", old_formats.write_bare),
            ("old-stamps", old_formats.write_stamped),
        ):
            write(node, f"{prefix}.{kind}")
            topics[f"{prefix}.{kind}"] = len(old_formats.CODECS)
    return topics


def archived(node: LocalKafka, folder: Path, prefix: str, topics: Mapping[str, int]) -> Archived:
    """Archive twice: behind the first run, records of the cut topic are deleted before they are archived."""
    document = archive_runs.document(node.bootstrap, [rf"{prefix}\..*"], read={"on_data_loss": "continue"})
    topic_partitions = [(topic, partition) for topic, partitions in topics.items() for partition in range(partitions)]
    conf = conf_file(folder, "archive", document)
    first = read_partitions(node.bootstrap, topic_partitions)
    archive_all(conf)
    cut = f"{prefix}.cut"
    corpus.write(corpus.producer(node.bootstrap, cut, "gzip"), cut, range(40, 60))
    delete_records(node.bootstrap, cut, before=51)
    archive_all(conf)
    originals = {**first, (cut, 0): [*first[cut, 0], *read_partitions(node.bootstrap, [(cut, 0)])[cut, 0]]}
    assert [record.offset for record in originals[cut, 0]] == [*range(17, 40), *range(51, 60)]
    config = ArchiveConfig.from_document(document, folder=folder)
    report = verify_archive(config, is_deep=True)
    assert report.is_equal, report.sentences()
    return Archived(config, originals)


def assert_restored(archive: Archived, node: LocalKafka, folder: Path, name: str, offsets: str) -> None:
    for topic in {topic for topic, _ in archive.originals}:
        settings = {"max.message.bytes": str(MOST_BYTES), **(OF_PRESERVED if offsets == "preserved" else {})}
        if offsets == "preserved" and topic.endswith((".compacted", ".aged")):
            # As a restore of an existing topic demands: nothing is removed by its key before it is compared.
            settings |= {"cleanup.policy": "compact", "min.compaction.lag.ms": "9223372036854775807"}
        create_topic(node.bootstrap, f"{name}.{topic}", archive.partitions_of(topic), settings)
    document = restore_document(archive, node, name, offsets)
    with running("restore", str(conf_file(folder, name, document))) as process:
        require_end(process)
    copies = read_partitions(node.bootstrap, [(f"{name}.{topic}", partition) for topic, partition in archive.originals])
    for (topic, partition), originals in archive.originals.items():
        copied = copies[f"{name}.{topic}", partition]
        assert without_offsets(copied) == without_offsets(originals), (name, topic, partition)
        if offsets == "preserved":
            assert [record.offset for record in copied] == [record.offset for record in originals], (name, topic, partition)
    for is_deep in (False, True):
        report = verify_restore(RestoreConfig.from_document(document, folder=folder), is_deep=is_deep, from_start=True)
        assert report.is_equal, report.sentences()
        assert report.record_count == sum(map(len, archive.originals.values()))


def restore_document(archive: Archived, node: LocalKafka, name: str, offsets: str) -> dict[str, Any]:
    topics = {"target_name": f"{name}.{{topic}}", "offsets": {".*": offsets}}
    return restore_runs.document(archive.config, node.bootstrap, topics=topics, tables=name, restore=name)


@pytest.mark.parametrize(
    ("source", "targets", "ways"),
    [
        pytest.param(OLDEST, (OLDEST, OLD, NEWEST), OFFSETS, marks=pytest.mark.long, id="from the oldest"),
        pytest.param(NEWEST, (OLDEST, OLD, NEWEST), OFFSETS, marks=pytest.mark.long, id="from the newest"),
        pytest.param(NEWEST, (NEWEST,), ("preserved",), id="short"),
    ],
)
def test_every_log_comes_back_on_every_release_also_where_batches_must_be_smaller(
    brokers: Brokers, source: Release, targets: tuple[Release, ...], ways: tuple[str, ...], tmp_path: Path, topic_name: str
) -> None:
    """Compacted logs and those of legacy formats in the long ones. Preserved offsets need targets of Kafka 3.6."""
    node, prefix = brokers["source", source], topic_name[-50:]
    topics = written(node, prefix, with_legacy=source is OLDEST, with_compacted=len(targets) > 1)
    archive = archived(node, tmp_path, prefix, topics)
    for target, offsets in itertools.product(targets, ways):
        name = f"{offsets}-{target}-{prefix[-20:]}"
        if (target, offsets) != (OLDEST, "preserved"):
            assert_restored(archive, brokers["target", target], tmp_path, name, offsets)
            continue
        document = restore_document(archive, brokers["target", target], name, offsets)
        with running("restore", str(conf_file(tmp_path, name, document))) as process:
            _, output = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode == 2
        assert "ConfigError: topics.offsets: the target's brokers cannot preserve offsets" in output
        assert "they are older than Kafka 3.6" in output
