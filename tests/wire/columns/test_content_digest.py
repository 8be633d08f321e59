"""Digests of the rows of a slot."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from shallow_mirror.wire.columns import ContentDigest

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)

contents = st.none() | st.binary(max_size=5)
headers = st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": contents}), max_size=2)
row = st.tuples(st.none() | st.text(max_size=3), contents, headers, st.none() | st.integers(0, 3), st.none() | st.integers(0, 9))
rows = st.lists(row, max_size=8)

Row = tuple[object, ...]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def digest_of(*batches: pa.RecordBatch) -> tuple[int, int]:
    digest = ContentDigest()
    for batch in batches:
        digest.add(batch)
    return digest.record_count, digest.crc32c()


@pytest.mark.slow
@given(rows, st.integers(0, 8))
def test_it_does_not_depend_on_where_batches_end(rows: list[Row], cut: int) -> None:
    whole = batch_of(rows)
    assert digest_of(whole) == digest_of(whole[:cut], whole[cut:])


@pytest.mark.slow
@given(rows, rows)
def test_other_rows_have_another_digest(rows: list[Row], others: list[Row]) -> None:
    assert (digest_of(batch_of(rows)) == digest_of(batch_of(others))) == (rows == others)
