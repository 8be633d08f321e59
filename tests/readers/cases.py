"""The logs that every client reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.readers.written_log import COMPACTED, WrittenLog

from shallow_mirror.wire.records.fillers import MOST_FILLERS

_FILLERS_FIRST = 300
_FILLERS_OF_ONE_BATCH = 1_000
_FILLERS_OF_A_RUN = 5_000
_BATCHES_OF_A_RUN = 3


_FETCHED_S = 0.3
"""After so long a client that waits at the end has fetched what was appended."""
_MARKERS = 15


def write_a_record_behind_fillers(log: WrittenLog) -> None:
    log.add_fillers(5)
    log.add_records(["live"])


@dataclass(frozen=True, slots=True)
class Case:
    """`write(log, data_dir)` fills a log, and returns an offset inside a hole. `settings`: of the topic.

    `write_live` appends `live_count` records, and fillers, while a client waits at the end.
    """

    name: str
    write: Callable[[WrittenLog, Path], int]
    settings: Mapping[str, str] = field(default_factory=dict)
    write_live: Callable[[WrittenLog], None] = write_a_record_behind_fillers
    live_count: int = 1


def write_plain(log: WrittenLog, data_dir: Path) -> int:
    """Write fillers in front, one batch of them and a run of batches between records, and some at the end."""
    log.add_fillers(_FILLERS_FIRST)
    log.add_records(["a", "b", "c"])
    log.add_fillers(_FILLERS_OF_ONE_BATCH)
    log.add_records(["d"])
    inside = log.end + _FILLERS_OF_A_RUN + _FILLERS_OF_A_RUN // 2
    for _ in range(_BATCHES_OF_A_RUN):
        log.add_fillers(_FILLERS_OF_A_RUN)
    log.add_records(["e", "f"])
    log.add_fillers(1)
    log.add_records(["g"])
    log.add_fillers(7)
    return inside


def write_long_hole(log: WrittenLog, data_dir: Path) -> int:
    """Write filler batches that take a fetch response each: all of a response may be fillers."""
    log.add_records(["a"])
    inside = log.end + MOST_FILLERS + MOST_FILLERS // 2
    log.add_fillers(MOST_FILLERS)
    log.add_fillers(MOST_FILLERS)
    log.add_records(["b"])
    return inside


def write_mixed(log: WrittenLog, data_dir: Path) -> int:
    """Write batches with fillers between their records, one behind the other and around a batch without."""
    log.add_mixed([0, 3, 4, 10], ["a", "b", "c", "d"])
    inside = log.end + 5
    log.add_mixed([0, 900, 901], ["e", "f", "g"])
    log.add_records(["h", "i"])
    log.add_mixed([0, 2], ["j", "k"])
    return inside


def write_compacted(log: WrittenLog, data_dir: Path) -> int:
    """Write both kinds, have the broker compact them, and write both kinds again behind that, uncompacted."""
    write_plain(log, data_dir)
    inside = log.end + 5
    log.add_mixed([0, 3, 10], ["a", "h", "i"])
    log.add_fillers(20)
    log.add_records(["b", "j"])
    log.wait_for_cleaning(data_dir)
    log.add_mixed([0, 2, 9], ["k", "l", "m"])
    log.add_fillers(_FILLERS_OF_ONE_BATCH)
    log.add_records(["n"])
    log.add_fillers(7)
    return inside


def write_a_hole(log: WrittenLog, data_dir: Path) -> int:
    log.add_records(["a"])
    log.add_fillers(10)
    log.add_records(["b"])
    return log.end - 5


def write_transactions_one_by_one(log: WrittenLog) -> None:
    """Write a record and the filler of its marker, so that each is a fetch response of its own, again and again."""
    for _ in range(_MARKERS):
        log.add_records(["live"])
        time.sleep(_FETCHED_S)
        log.add_fillers(1)
        time.sleep(_FETCHED_S)


CASES = (
    Case("plain fillers", write_plain),
    Case("long hole", write_long_hole),
    Case("mixed batch", write_mixed),
    Case("compacted", write_compacted, COMPACTED),
    Case("live fillers", write_a_hole, write_live=write_transactions_one_by_one, live_count=_MARKERS),
)
