"""Documents that are derived from the last one are those that would be built anew."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_codec import OffsetCodec
from shallow_mirror.types import SourcePartition

_SOURCES = st.builds(
    lambda topic, partition: SourcePartition(topic, f"id-{topic}", partition), st.sampled_from("abc"), st.integers(0, 12)
)
_OFFSETS = st.dictionaries(_SOURCES, st.integers(0, 5), max_size=12)
A, B = SourcePartition("orders", "idA", 0), SourcePartition("orders", "idA", 1)


@pytest.mark.slow
@given(st.lists(_OFFSETS, max_size=4), st.lists(st.dictionaries(st.integers(0, 11), st.integers(6, 9)), max_size=3))
def test_each_document_has_the_text_of_one_that_is_built_alone(
    firsts: list[dict[SourcePartition, int]], changes: list[dict[int, int]]
) -> None:
    documents = OffsetCodec()
    for first in firsts:
        offsets = first
        for change in [{}, *changes]:
            partitions = list(offsets)
            offsets = offsets | {partitions[at]: offset for at, offset in change.items() if at < len(partitions)}
            built = documents.build(offsets)
            assert json.dumps(built) == json.dumps(offset_planning.build_stream_offset(offsets))
            assert documents.parse(json.loads(json.dumps(built))) == offsets


def test_a_document_that_was_given_out_does_not_change_later() -> None:
    documents = OffsetCodec()
    first = documents.build({A: 1, B: 2})
    text = json.dumps(first)
    second = documents.build({A: 1, B: 3})
    assert json.dumps(first) == text != json.dumps(second)


def test_what_spark_hands_back_is_not_parsed_again() -> None:
    documents = OffsetCodec()
    built = documents.build({A: 1, B: 2})
    returned = json.loads(json.dumps(built))
    assert documents.parse(returned) is documents.parse(built)


@pytest.mark.parametrize("change", [{"version": 2}, {"topics": None}, {"topics": {"orders": {"id": "idA"}}}])
def test_a_document_of_another_kind_is_refused_as_ever(change: dict[str, object]) -> None:
    documents = OffsetCodec()
    with pytest.raises(ValueError, match="stream offset"):
        documents.parse(documents.build({A: 1}) | change)
