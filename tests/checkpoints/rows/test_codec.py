"""A dataclass is the schema of its table: what is written is read back, also by releases that add columns."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, strategies as st

from shallow_mirror.checkpoints.rows.codec import TIMESTAMP, Column, Inline, Int32, Json, TimeMs, row_codec


class Location(NamedTuple):
    topic: str
    partition: int


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    size_bytes: int
    note: Annotated[str, Column("remark")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    name: str
    count: int
    epoch: Int32
    ratio: float
    is_done: bool
    data: bytes
    at: datetime
    seen_at_ms: TimeMs
    ended_at_ms: TimeMs | None = None
    source: Location
    target: Location | None = None
    span: Annotated[Span, Inline("span_")]
    details: Annotated[Details | None, Inline()] = None
    colour: Colour
    action: Literal["on", "off"]
    configs: Mapping[str, str]
    spans: tuple[Span, ...]
    checksums: tuple[int, ...] | None = None
    document: Annotated[Mapping[str, Any], Json()]
    doubled: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", 2 * self.count)


CODEC = row_codec(Example)
_INT64, _INT32, _TEXT = pa.int64(), pa.int32(), pa.string()
int64 = st.integers(-(1 << 62), (1 << 62) - 1)
time_ms = st.integers(0, 4_000_000_000_000)
spans = st.builds(Span, int64, int64)
locations = st.builds(Location, st.text(), st.integers(0, 1 << 20))
examples = st.builds(
    Example,
    name=st.text(),
    count=st.integers(-(1 << 61), (1 << 61) - 1),
    epoch=st.integers(-(1 << 31), (1 << 31) - 1),
    ratio=st.floats(allow_nan=False),
    is_done=st.booleans(),
    data=st.binary(),
    at=time_ms.map(lambda ms: datetime.fromtimestamp(ms / 1000, UTC)),
    seen_at_ms=time_ms,
    ended_at_ms=st.none() | time_ms,
    source=locations,
    target=st.none() | locations,
    span=spans,
    details=st.none() | st.builds(Details, size_bytes=int64, note=st.text()),
    colour=st.sampled_from(Colour),
    action=st.sampled_from(["on", "off"]),
    configs=st.dictionaries(st.text(), st.text(), max_size=3),
    spans=st.lists(spans, max_size=3).map(tuple),
    checksums=st.none() | st.lists(int64, max_size=3).map(tuple),
    document=st.dictionaries(st.text(), st.integers() | st.text(), max_size=3),
)


def test_the_columns_are_the_fields_in_their_order() -> None:
    assert [(column.name, column.type) for column in CODEC.schema] == [
        ("name", _TEXT), ("count", _INT64), ("epoch", _INT32), ("ratio", pa.float64()), ("is_done", pa.bool_()), ("data", pa.binary()),
        ("at", TIMESTAMP), ("seen_at", TIMESTAMP), ("ended_at", TIMESTAMP),
        ("source_topic", _TEXT), ("source_partition", _INT32), ("target_topic", _TEXT), ("target_partition", _INT32),
        ("span_start", _INT64), ("span_end", _INT64), ("size_bytes", _INT64), ("remark", _TEXT), ("colour", _TEXT), ("action", _TEXT),
        ("configs", pa.map_(_TEXT, _TEXT)), ("spans", pa.list_(pa.struct([("start", _INT64), ("end", _INT64)]))),
        ("checksums", pa.list_(_INT64)), ("document", _TEXT), ("doubled", _INT64),
    ]  # fmt: skip


@pytest.mark.slow
@given(st.lists(examples, max_size=4))
def test_rows_are_read_back_as_they_were_written(rows: list[Example]) -> None:
    table = CODEC.to_arrow(rows)
    assert table.schema == CODEC.schema
    assert CODEC.rows(table.to_pylist()) == rows


@pytest.mark.thorough
def test_rows_come_back_from_a_delta_table(tmp_path: Path) -> None:
    rows = [_example(1), _example(2)]
    write_deltalake(str(tmp_path), CODEC.to_arrow(rows))
    stored = CODEC.rows(DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist())
    assert sorted(stored, key=lambda row: row.count) == rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    name: str
    details: Annotated[Details, Inline()]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDetails:
    size_bytes: int
    note: Annotated[str, Column("remark")] = ""
    level: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    name: str
    details: Annotated[NewDetails, Inline()]
    epoch: Int32 = 7
    location: Location | None = None


def test_columns_that_a_table_lacks_or_that_are_null_in_old_rows_take_the_default() -> None:
    before = Before(name="a", details=Details(size_bytes=3, note="n"))
    after = After(name="a", details=NewDetails(size_bytes=3, note="n"))
    (old,) = row_codec(Before).to_arrow([before]).to_pylist()
    added = {"level": None, "epoch": None, "place_topic": None, "place_partition": None}
    assert row_codec(After).row(old) == row_codec(After).row(old | added) == after


def test_a_missing_column_without_a_default_is_an_error() -> None:
    with pytest.raises(KeyError, match="name"):
        row_codec(Before).row({"size_bytes": 3, "remark": ""})


def _example(count: int) -> Example:
    return Example(
        name="n", count=count, epoch=1, ratio=0.5, is_done=True, data=b"\0", at=datetime(2026, 1, 1, tzinfo=UTC), seen_at_ms=1_000,
        source=Location("t", 0), target=Location("u", 1), span=Span(1, 2), details=Details(size_bytes=1), colour=Colour.BLUE, action="on",
        configs={"a": "b"}, spans=(Span(3, 4),), checksums=(5,), document={"k": 1},
    )  # fmt: skip
