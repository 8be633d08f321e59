"""Translation is monotonic, exact on data, and its own inverse there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.rows.schema import rows_to_arrow
from shallow_mirror.checkpoints.rows.translation import Translation, Translator
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition

SOURCE = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 2)
TARGET = TargetPartition("east.orders", "tgttgttgttgttgttgttgtA", 2)


@dataclass(frozen=True)
class Line:
    """Segments that cover [start, end) of the source, and the offsets of its records on both sides."""

    rows: tuple[DecidedSegment, ...]
    start: int
    end: int
    pairs: tuple[tuple[int, int], ...]

    @property
    def forward(self) -> Translator:
        return Translator.of_source(rows_to_arrow(self.rows[::-1], 1, 1, 0))

    @property
    def backward(self) -> Translator:
        return Translator.of_target(rows_to_arrow(self.rows[::-1], 1, 1, 0))


def segment(kind: SegmentKind, start: int, end: int, target_start: int | None = None) -> DecidedSegment:
    target_end = None if target_start is None else target_start + end - start
    return DecidedSegment(
        Segment(
            source=SOURCE,
            source_start=start,
            source_end=end,
            kind=kind,
            target=TARGET,
            target_start=target_start,
            target_end=target_end,
        ),
        None,
    )


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """As a mirror makes them: target offsets rise, with jumps for markers and for records of other writers."""
    start = position = draw(st.integers(0, 50))
    target = draw(st.integers(0, 50))
    rows = [segment(SegmentKind.GAP, start, start)]
    pairs: list[tuple[int, int]] = []
    for kind in draw(st.lists(st.sampled_from([kind for kind in SegmentKind if kind is not SegmentKind.RELEASED]), max_size=12)):
        size = draw(st.integers(1, 6))
        if kind is SegmentKind.DATA:
            target += draw(st.integers(0, 3))
            rows.append(segment(kind, position, position + size, target))
            pairs += [(position + at, target + at) for at in range(size)]
            target += size
        else:
            rows.append(segment(kind, position, position + size))
        position += size
    return Line(tuple(rows), start, position, tuple(pairs))


@pytest.mark.slow
@given(lines())
def test_an_offset_of_a_record_translates_exactly_there_and_back(line: Line) -> None:
    for source_offset, target_offset in line.pairs:
        forward, back = line.forward.find(source_offset), line.backward.find(target_offset)
        assert (
            (forward.exact, forward.beyond, forward.kind)
            == (back.exact, back.beyond, back.kind)
            == (True, False, SegmentKind.DATA)
        )
        assert (forward.target_topic, forward.target_partition, forward.target_offset) == (TARGET.topic, 2, target_offset)
        assert (back.target_topic, back.target_partition, back.target_offset) == (SOURCE.topic, 2, source_offset)


@pytest.mark.slow
@given(lines())
def test_translation_is_monotonic_both_ways(line: Line) -> None:
    for translator in (line.forward, line.backward):
        translated = [translator.find(offset).target_offset for offset in range(line.end + 200)]
        offsets = [offset for offset in translated if offset is not None]
        assert offsets == sorted(offsets)
        assert len(offsets) in (0, len(translated))


@pytest.mark.slow
@given(lines())
def test_an_offset_without_a_record_leads_to_the_next_record_or_the_end(line: Line) -> None:
    forward, sources = line.forward, dict(line.pairs)
    for offset in range(line.end + 5):
        translated = forward.find(offset)
        later = [target for source, target in line.pairs if source >= offset]
        assert translated.exact == (offset in sources)
        assert translated.beyond == (not later)
        assert translated.target_offset == (later[0] if later else line.pairs[-1][1] + 1 if line.pairs else None)


@pytest.mark.slow
@given(lines())
def test_the_kind_is_that_of_the_segment_that_holds_the_offset(line: Line) -> None:
    kinds = {at: row.segment.kind for row in line.rows for at in range(row.segment.source_start, row.segment.source_end)}
    forward = line.forward
    assert [forward.find(at).kind for at in range(line.end + 3)] == [kinds.get(at) for at in range(line.end + 3)]


def test_a_partition_without_data_leads_nowhere() -> None:
    rows = rows_to_arrow([segment(SegmentKind.GAP, 3, 3), segment(SegmentKind.ABORTED, 3, 9)], 1, 1, 0)
    nowhere: dict[str, Any] = {
        "exact": False,
        "beyond": True,
        "target_topic": None,
        "target_partition": None,
        "target_offset": None,
    }
    assert Translator.of_source(rows).find(5) == Translation(kind=SegmentKind.ABORTED, **nowhere)
    assert Translator.of_target(rows).find(5) == Translation(kind=None, **nowhere)


@pytest.mark.parametrize(("offset", "expected"), [(0, 1000), (1, 1001), (4, 1004), (5, 1005), (6, 1006), (7, 1007)])
def test_a_marker_on_the_source_is_passed_over(offset: int, expected: int) -> None:
    rows = [
        segment(SegmentKind.DATA, 0, 5, 1000),
        segment(SegmentKind.COMMIT, 5, 6),
        segment(SegmentKind.DATA, 6, 7, 1006),
    ]
    translated = Translator.of_source(rows_to_arrow(rows, 1, 1, 0)).find(offset)
    assert translated.target_offset == (1006 if offset == 5 else expected)
    assert (translated.exact, translated.beyond) == (offset not in (5, 7), offset == 7)


def test_released_records_lead_to_where_they_are_and_no_other_offset_leads_there() -> None:
    rows = (
        segment(SegmentKind.DATA, 0, 3, 100),
        segment(SegmentKind.QUARANTINED, 3, 8),
        segment(SegmentKind.DATA, 8, 10, 103),
        segment(SegmentKind.RELEASED, 3, 5, 200),
        segment(SegmentKind.RELEASED, 7, 8, 202),
    )
    line = Line(rows, 0, 10, ())
    translations = [line.forward.find(offset) for offset in range(10)]
    assert [translated.target_offset for translated in translations] == [100, 101, 102, 200, 201, 103, 103, 202, 103, 104]
    assert [str(difference.kind) for difference in translations[2:9]] == [
        "data",
        "released",
        "released",
        "quarantined",
        "quarantined",
        "released",
        "data",
    ]
    assert [translated.exact for translated in translations] == [True, True, True, True, True, False, False, True, True, True]
    assert [line.backward.find(offset).target_offset for offset in (102, 103, 200, 202)] == [2, 8, 3, 7]
    assert line.backward.find(150).beyond
