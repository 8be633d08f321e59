"""Pure: the records of queries with DataFrame sinks in rounds of faults: which there are, and how those that arrived differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.faults.steps import SLOTS

PARTITIONS = 3


def value_of(name: str, number: int) -> str:
    return f"{name}/{number:08}"


def partition_of(number: int) -> int:
    return number % PARTITIONS


def slot_of(number: int) -> int:
    return number // PARTITIONS % SLOTS


def differences(
    name: str, micro_batches: Sequence[range], partitions: Sequence[Sequence[str]], running: Sequence[range] = ()
) -> list[str]:
    """Return how the committed values of a query differ from those of its micro-batches. Values are `value_of` its numbers.

    Between slots of a micro-batch there is no order; a slot keeps its own, and micro-batches follow each other. `running`:
    those behind `micro_batches` whose records may be there already, or not yet.
    """
    expected = [number for micro_batch in micro_batches for number in micro_batch]
    known = [*micro_batches, *running]
    micro_batch_of = {number: index for index, micro_batch in enumerate(known) for number in micro_batch}
    in_partitions = [[int(value.split("/")[1]) for value in values if value.startswith(f"{name}/")] for values in partitions]
    counts = Counter(number for numbers in in_partitions for number in numbers)
    found = [f"lost: {value_of(name, number)}" for number in expected if not counts[number]]
    found += [f"{count} times: {value_of(name, number)}" for number, count in sorted(counts.items()) if count > 1]
    found += [f"unexpected: {value_of(name, number)}" for number in sorted(counts.keys() - micro_batch_of.keys())]
    for partition, numbers in enumerate(in_partitions):
        found += [
            f"in partition {partition}: {value_of(name, number)}" for number in numbers if partition_of(number) != partition
        ]
        last: defaultdict[int, int] = defaultdict(lambda: -1)
        newest = -1
        for number in numbers:
            index = micro_batch_of.get(number, newest)
            if index < newest or number <= last[slot_of(number)]:
                found.append(f"reordered in partition {partition}: {value_of(name, number)}")
            newest, last[slot_of(number)] = index, number
    return found
