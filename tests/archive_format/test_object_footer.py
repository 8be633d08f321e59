"""A footer is read back as it was written; a damaged one is an ArchiveFormatError and nothing else."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.archive_format.archived_rows import HEADER, NAME, archived_segments, data, gap

from shallow_mirror.archive_format import ArchivedSegment, StoredBatches
from shallow_mirror.archive_format.object_footer import (
    FORMAT,
    MAGIC,
    MAX_FOOTER_BYTES,
    TRAILER,
    ObjectFooter,
    build_footer,
    footer_size,
    parse_footer,
)
from shallow_mirror.errors import ArchiveFormatError, ConfigError
from shallow_mirror.wire import crc32c

OBJECT = str(NAME)
ROWS = (data(5, 20), gap(20, 25), data(25, 30, position=100, size_bytes=61))
FOOTER = build_footer(HEADER, ROWS)


def sealed(document: object, format_number: int = FORMAT) -> bytes:
    """Return a footer with a correct trailer around any document."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return content + TRAILER.pack(crc32c(content), len(content), MAGIC, format_number)


def changed(**fields: Any) -> bytes:
    return sealed(json.loads(FOOTER[: -TRAILER.size]) | fields)


def without_crcs(stored: StoredBatches) -> StoredBatches:
    return replace(stored, run_crc32c=None)


def with_row(**fields: Any) -> bytes:
    row = json.loads(FOOTER[: -TRAILER.size])["rows"][0]
    return changed(rows=[row | fields])


@pytest.mark.slow
@given(st.lists(archived_segments(), max_size=3), st.binary(max_size=100))
def test_a_footer_is_read_back(others: list[ArchivedSegment], batches: bytes) -> None:
    rows = (data(5, 20), *others)
    footer = build_footer(HEADER, rows)
    assert footer_size(OBJECT, footer[-TRAILER.size :]) == len(footer)
    assert parse_footer(OBJECT, memoryview(batches + footer)) == ObjectFooter(HEADER, rows, len(footer))


def test_the_trailer_is_as_documented() -> None:
    content = FOOTER[:-16]
    assert FOOTER[-8:] == b"SMARCH\x00\x01"
    assert int.from_bytes(FOOTER[-16:-12], "big") == crc32c(content)
    assert int.from_bytes(FOOTER[-12:-8], "big") == len(content)


@given(st.integers(0, len(FOOTER) - 1))
def test_a_cut_footer_is_found(size: int) -> None:
    for part in (FOOTER[:size], FOOTER[len(FOOTER) - size :]):
        with pytest.raises(ArchiveFormatError) as caught:
            parse_footer(OBJECT, part)
        assert caught.value.object_name == OBJECT


def test_every_flipped_bit_is_found() -> None:
    for bit in range(8 * len(FOOTER)):
        damaged = bytearray(FOOTER)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ArchiveFormatError):
            parse_footer(OBJECT, bytes(damaged))


@given(st.binary(max_size=300))
def test_any_bytes_under_a_correct_checksum_are_refused(content: bytes) -> None:
    with pytest.raises(ArchiveFormatError):
        parse_footer(OBJECT, sealed(content))


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
        max_leaves=8,
    ),
    st.sampled_from(["rows", "archive_id", "run_epoch", "decision", "slot", "source_cluster_id", "format"]),
)
def test_any_value_of_a_field_is_read_or_refused(value: object, name: str) -> None:
    try:
        footer = parse_footer("no-name", changed(**{name: value}))
    except ArchiveFormatError:
        return
    assert isinstance(footer, ObjectFooter)


@pytest.mark.parametrize(
    "damaged",
    [
        sealed(b"[" * 100_000),
        sealed(b'{"format":1,"rows":[' + b"[" * 100_000),
        sealed(b"1" * 10_000),
        sealed(b"\xff"),
        sealed([]),
        sealed({"format": 1}),
        changed(format=True),
        changed(format=2),
        changed(slot=1.0),
        changed(archive_id="\ud800"),
        changed(rows={}),
        changed(rows=[[]]),
        with_row(kind="released"),
        with_row(kind="gone"),
        with_row(kind=None),
        with_row(source_start=-1),
        with_row(source_end=4),
        with_row(source_end=1 << 63),
        with_row(source_partition=1 << 31),
        with_row(size_bytes=101),
        with_row(crc32c=None),
        with_row(crc32c=1 << 32),
        with_row(run_crc32c=None),
        with_row(run_crc32c=[]),
        with_row(run_crc32c=[1, 2]),
        with_row(run_crc32c=[-1]),
        with_row(run_crc32c=[1 << 32]),
        with_row(run_crc32c=[1.0]),
        changed(minor=-1),
        changed(minor="1"),
        changed(retention_class=None),
        changed(**{"try": None}),
        with_row(index=None),
        with_row(index=[]),
        with_row(index=[[5, 0, 100]]),
        with_row(index=[[4, 0, 100, 0]]),
        with_row(index=[[20, 0, 100, 0]]),
        with_row(index=[[5, -1, 100, 0]]),
        with_row(index=[[5, 0, 50, 0], [5, 50, 50, 0]]),
        with_row(index=[[5, 0, 100, 0], [6, 100, 0, 0]]),
        with_row(leader_epochs=[[1, 5], [2, 5]]),
        with_row(leader_epochs=[[1 << 31, 5]]),
        with_row(aborted=[[1, 5, 4]]),
        with_row(aborted=[[1, None, None]]),
        with_row(min_timestamp_ms="1"),
    ],
)
def test_a_malformed_footer_under_a_correct_checksum_is_refused(damaged: bytes) -> None:
    with pytest.raises(ArchiveFormatError, match="footer is malformed") as caught:
        parse_footer(OBJECT, damaged)
    assert "\n" not in str(caught.value)


def test_fields_that_later_releases_add_are_ignored() -> None:
    assert parse_footer(OBJECT, changed(host="a")).rows == ROWS
    assert parse_footer(OBJECT, with_row(host="a")).rows == ROWS[:1]


def test_a_newer_format_asks_for_a_newer_release() -> None:
    document = {"format": FORMAT + 1, "something": "else"}
    with pytest.raises(ConfigError, match="Use a newer shallow-mirror"):
        parse_footer(OBJECT, sealed(document, FORMAT + 1))


def test_a_format_number_that_never_was_is_refused() -> None:
    with pytest.raises(ArchiveFormatError, match="there is no format 0"):
        parse_footer(OBJECT, sealed({"format": 0}, 0))


def test_a_claimed_length_allocates_nothing() -> None:
    size = 1 << 31
    tail = bytes(100) + TRAILER.pack(0, size, MAGIC, FORMAT)
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveFormatError, match=f"claims {size} bytes, at most {MAX_FOOTER_BYTES}"):
            parse_footer(OBJECT, tail)
        with pytest.raises(ArchiveFormatError, match="116 are there"):
            parse_footer(OBJECT, bytes(100) + TRAILER.pack(0, MAX_FOOTER_BYTES, MAGIC, FORMAT))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "part",
    [{"archive_id": "other"}, {"run_epoch": 4}, {"decision": 8}, {"slot": 3}, {"retention_class": 2}, {"try_id": "0123abce"}],
)
def test_an_object_under_the_name_of_another_one_is_found(part: dict[str, Any]) -> None:
    with pytest.raises(ArchiveFormatError, match="it is another object by its footer"):
        parse_footer(str(replace(NAME, **part)), FOOTER)


def test_a_footer_of_format_1_0_is_read_without_what_it_does_not_have() -> None:
    document = json.loads(FOOTER[: -TRAILER.size])
    for name in ("minor", "retention_class", "try"):
        del document[name]
    for row in document["rows"]:
        row.pop("run_crc32c", None)
    older = parse_footer(OBJECT, sealed(document))
    assert older.header == replace(HEADER, retention_class=None, try_id=None)
    assert older.rows == tuple(row if row.stored is None else replace(row, stored=without_crcs(row.stored)) for row in ROWS)
    assert parse_footer(str(replace(NAME, try_id="0123abce")), sealed(document)).rows
    with pytest.raises(ArchiveFormatError, match="it is another object by its footer"):
        parse_footer(str(replace(NAME, slot=3)), sealed(document))


def test_a_later_minor_number_is_read() -> None:
    assert parse_footer(OBJECT, changed(minor=2, more=[])).rows == ROWS


def test_rows_without_checksums_of_their_runs_are_not_written() -> None:
    row = ROWS[0]
    assert row.stored is not None
    with pytest.raises(ValueError, match="run_crc32c is no list"):
        build_footer(HEADER, [replace(row, stored=without_crcs(row.stored))])


def test_an_object_keeps_its_rows_under_any_other_name() -> None:
    rows = parse_footer("copies/first", FOOTER).rows
    assert [row.stored and row.stored.object_name for row in rows] == ["copies/first", None, "copies/first"]


def test_rows_that_cannot_be_read_again_are_not_written() -> None:
    row = data(5, 20)
    rebuilt = replace(row, segment=replace(row.segment, rebuilt_batch_count=1))
    unstored = replace(row, stored=None)
    short = replace(row, segment=replace(row.segment, size_bytes=99))
    for rows in ([rebuilt], [short], [row, unstored], [gap(1, 2)], [row, data(20, 30, object_name="another")]):
        with pytest.raises(ValueError, match=r"rows|row|list"):
            build_footer(HEADER, rows)


def test_the_error_travels_between_processes() -> None:
    error = ArchiveFormatError("a", "it is cut", "Restore it")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.object_name, copied.remedy) == ("object a: it is cut. Restore it", "a", "Restore it")
