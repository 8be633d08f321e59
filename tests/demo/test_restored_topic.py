from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import yaml

from shallow_mirror.config import ArchiveConfig, RestoreConfig
from shallow_mirror.demo.history import History, HistoryBuilder, record_digest
from shallow_mirror.demo.restored_topic import TOPIC, archive_file, problems_of, restore_file
from shallow_mirror.types import TopicPartition

PARTITION = TopicPartition(TOPIC, 0)


def history(*values: bytes) -> History:
    builder = HistoryBuilder()
    for offset, value in enumerate(values):
        builder.add(offset, record_digest(None, value, (), 1, 0))
    return builder.build()


def test_the_written_files_are_valid_ones(tmp_path: Path) -> None:
    archive = ArchiveConfig.from_document(yaml.safe_load(archive_file("127.0.0.1:1", tmp_path)), folder=tmp_path)
    assert archive.topics.is_included(TOPIC)
    assert not archive.topics.is_included("orders.events")
    cut = datetime(2026, 5, 1, 12, 0, 0, 1000, tzinfo=UTC)
    restore = RestoreConfig.from_document(yaml.safe_load(restore_file("127.0.0.1:1", tmp_path, cut)), folder=tmp_path)
    assert restore.until.time_ms == 1_777_636_800_001
    assert (restore.archive.tables, restore.archive.objects) == (archive.tables, archive.objects)


def test_equal_partitions_are_no_problem_and_others_are_named() -> None:
    assert problems_of({PARTITION: history(b"a", b"b")}, {PARTITION: history(b"a", b"b")}) == []
    assert "2 records up to the cut, 1 restored" in problems_of({PARTITION: history(b"a", b"b")}, {PARTITION: history(b"a")})[0]
    assert len(problems_of({PARTITION: history(b"a", b"b")}, {PARTITION: history(b"b", b"a")})) == 1
    assert "0 restored" in problems_of({PARTITION: history(b"a")}, {})[0]


def test_a_cut_in_front_of_everything_proves_nothing() -> None:
    nothing = History(np.empty(0, np.int64), np.empty(0, "V16"))
    assert problems_of({PARTITION: nothing}, {PARTITION: nothing}) == [
        "no record lies before the cut: this restore proves nothing"
    ]
