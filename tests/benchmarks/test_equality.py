from __future__ import annotations

from benchmarks.equality import PartitionDigest, difference

SOURCE = {0: PartitionDigest(3, "content", "times"), 1: PartitionDigest(0, "empty", "empty")}


def test_the_same_digests_are_no_difference() -> None:
    assert difference(SOURCE, dict(SOURCE)) == ""


def test_missing_and_repeated_records_are_counted() -> None:
    assert difference(SOURCE, SOURCE | {0: PartitionDigest(2, "other", "other")}) == "partition 0 has 2 of 3 records"
    assert difference(SOURCE, SOURCE | {1: PartitionDigest(1, "other", "other")}) == "partition 1 has 1 of 0 records"


def test_changed_records_are_distinguished_from_changed_times() -> None:
    assert "order differ in partitions 0" in difference(SOURCE, SOURCE | {0: PartitionDigest(3, "other", "times")})
    assert difference(SOURCE, SOURCE | {0: PartitionDigest(3, "content", "other")}) == "only the timestamps differ"
