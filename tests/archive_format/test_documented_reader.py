"""The reader of the documentation reads what this package writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.archive_format.archived_rows import HEADER, NAME, SOURCE, data, gap
from tests.support.record_batches import batch, marker

from shallow_mirror.archive_format import AbortedTxn, ArchivedSegment, IndexEntry, build_footer, object_footer
from shallow_mirror.checkpoints.rows import ARCHIVE_SEGMENTS
from shallow_mirror.types import SourcePartition
from shallow_mirror.wire import crc32c

TRANSACTIONAL = 0x10
OTHER = SOURCE._replace(partition=1)

Reader = Callable[[Path, str, int], Iterator[tuple[int, bytes]]]


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "reference" / "archive-format.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def committed_batches(page: str) -> Reader:
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    reader: Reader = names["committed_batches"]
    return reader


def row_of(
    source: SourcePartition, start: int, end: int, runs: list[tuple[int, int, bytes]], aborted: tuple[AbortedTxn, ...] = ()
) -> ArchivedSegment:
    """Return a row of data. `runs`: (first offset, position, bytes)."""
    content = b"".join(run for _, _, run in runs)
    row = data(start, end, source, size_bytes=len(content))
    assert row.stored is not None
    index = tuple(IndexEntry(first, position, len(run), 1_000) for first, position, run in runs)
    crcs = tuple(crc32c(run) for _, _, run in runs)
    return replace(row, stored=replace(row.stored, index=index, aborted=aborted, crc32c=crc32c(content), run_crc32c=crcs))


def test_the_documented_reader_reads_the_committed_batches_of_a_partition(tmp_path: Path, committed_batches: Reader) -> None:
    begins_below, committed = batch(3, 4), batch(7, 2, attributes=TRANSACTIONAL, producer_id=8)
    aborted = batch(9, 1, attributes=TRANSACTIONAL, producer_id=7)
    later = batch(12, 3, attributes=TRANSACTIONAL, producer_id=7)
    undecided_here = batch(15, 1, attributes=TRANSACTIONAL, producer_id=9)
    plain = batch(16, 1, producer_id=9)
    first_run = begins_below + committed + aborted + marker(10, 0, 7) + marker(11, 1, 8)
    others = batch(40, 5)
    second_run = later + undecided_here + plain
    rows = [
        row_of(
            SOURCE,
            5,
            20,
            [(5, 0, first_run), (12, len(first_run + others), second_run)],
            (AbortedTxn(7, 2, 10), AbortedTxn(9, 15, None)),
        ),
        gap(20, 22),
        row_of(OTHER, 40, 45, [(40, len(first_run), others)]),
    ]
    path = tmp_path / "object"
    path.write_bytes(first_run + others + second_run + build_footer(HEADER, rows))
    assert list(committed_batches(path, "orders", 0)) == [(3, begins_below), (7, committed), (12, later), (16, plain)]
    assert list(committed_batches(path, "orders", 1)) == [(40, others)]
    assert list(committed_batches(path, "payments", 0)) == []


@pytest.mark.slow
def test_the_documented_reader_stops_at_every_changed_byte(tmp_path: Path, committed_batches: Reader) -> None:
    content = batch(5, 3) + batch(8, 2)
    path = tmp_path / "object"
    whole = content + build_footer(HEADER, [row_of(SOURCE, 5, 10, [(5, 0, content)])])
    for pos in range(len(whole)):
        path.write_bytes(whole[:pos] + bytes([whole[pos] ^ 1]) + whole[pos + 1 :])
        with pytest.raises((ValueError, OSError)):
            list(committed_batches(path, "orders", 0))


def test_the_documented_reader_stops_at_another_file(tmp_path: Path, committed_batches: Reader) -> None:
    path = tmp_path / "object"
    path.write_bytes(batch(0, 5))
    with pytest.raises(ValueError, match="no object of format 1"):
        list(committed_batches(path, "orders", 0))


def test_the_page_names_every_field_of_a_footer_and_the_figures_of_the_format(page: str) -> None:
    footer = object_footer._row(data(5, 20))
    assert [name for name in footer if f"`{name}`" not in page] == []
    assert set(footer) < set(ARCHIVE_SEGMENTS.names)
    left_out = {"object_name", "state", "run_epoch", "micro_batch", "decided_at"}
    assert set(ARCHIVE_SEGMENTS.names) - set(footer) == left_out
    assert all(f"`{name}`" in page for name in left_out)
    assert str(object_footer.MAX_FOOTER_BYTES) in page
    assert str(NAME) in page
