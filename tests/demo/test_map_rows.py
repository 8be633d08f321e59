from __future__ import annotations

from shallow_mirror.demo.map_rows import MapRow, RowTranslation, Totals, totals


def row(start: int, end: int, kind: str = "data", target: int | None = None, **counts: int) -> MapRow:
    filled = {"record_count": 0, "batch_count": 0, "rebuilt_batch_count": 0, "size_bytes": 0, **counts}
    return MapRow(
        source_topic="orders", source_partition=0, source_start=start, source_end=end, kind=kind, target_start=target, **filled
    )


ROWS = (row(20, 21, "commit"), row(0, 0, "gap"), row(0, 10, target=0), row(10, 20, "aborted"), row(21, 30, target=11))


def test_offsets_of_data_rows_translate_by_the_shift_of_their_row() -> None:
    translate = RowTranslation(ROWS)
    assert [translate("orders", 0, offset) for offset in (0, 9, 21, 29)] == [("data", True, at) for at in (0, 9, 11, 19)]


def test_other_offsets_have_no_exact_translation() -> None:
    translate = RowTranslation(ROWS)
    assert translate("orders", 0, 15) == ("aborted", False, None)
    assert translate("orders", 0, 20) == ("commit", False, None)
    assert translate("orders", 0, 30) == translate("orders", 1, 0) == translate("other", 0, 0) == ("unknown", False, None)


def test_a_hole_and_an_overlap_are_both_reported() -> None:
    assert RowTranslation(ROWS).overlaps() == ()
    assert RowTranslation((row(0, 5, target=0), row(6, 9, target=5))).overlaps() == (
        "orders-0: a row ends at 5, the next starts at 6",
    )
    assert len(RowTranslation((row(0, 5, target=0), row(4, 9, target=5))).overlaps()) == 1


def test_totals_add_up_by_topic_and_kind() -> None:
    data = [row(0, 5, target=0, record_count=5, batch_count=2, rebuilt_batch_count=1, size_bytes=70)] * 2
    assert totals(data)["orders", "data"] == Totals(rows=2, records=10, batches=4, rebuilt_batches=2, size_bytes=140)
