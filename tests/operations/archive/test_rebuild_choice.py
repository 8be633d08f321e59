"""Which objects were committed, by their footers alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st
from tests.archive_format.archived_rows import data
from tests.support.examples import examples

from shallow_mirror.archive_format import ArchivedSegment, ObjectName
from shallow_mirror.operations.archive.rebuild_choice import Choice, FooterSummary, Partitions, choose
from shallow_mirror.types import SourcePartition

PARTITIONS = Partitions()
P, Q = (SourcePartition("orders", "id", number) for number in range(2))


def footer(version: tuple[int, int], slot: int, attempt: int, *rows: tuple[SourcePartition, int, int]) -> FooterSummary:
    name = ObjectName(
        archive_id="a", run_epoch=version[0], decision=version[1], slot=slot, retention_class=0, try_id=f"{attempt:08x}"
    )
    segments: list[ArchivedSegment] = [data(start, end, source, object_name=str(name)) for source, start, end in rows]
    return FooterSummary.of(name, 0, segments, PARTITIONS)


def chosen(choice: Choice) -> list[tuple[int, int, int, str]]:
    """Return run epoch, decision, slot and try of each chosen object."""
    names = [summary.name for decision in choice.decisions for summary in decision]
    return [(name.run_epoch, name.decision, name.slot, name.try_id.lstrip("0")) for name in names]


def test_all_objects_of_an_undisturbed_archive_are_chosen() -> None:
    footers = [footer((1, 2), 0, 1, (P, 0, 5)), footer((1, 2), 1, 2, (Q, 0, 3)), footer((1, 4), 0, 3, (P, 5, 9), (Q, 3, 4))]
    choice = choose(footers, PARTITIONS)
    assert chosen(choice) == [(1, 2, 0, "1"), (1, 2, 1, "2"), (1, 4, 0, "3")]
    assert (choice.uncommitted, choice.holes, choice.ambiguous, choice.overlaps) == ([], [], [], [])


def test_a_decision_that_a_later_one_repeats_was_not_committed() -> None:
    footers = [footer((1, 2), 0, 1, (P, 0, 5)), footer((1, 2), 1, 2, (Q, 0, 3)), footer((2, 2), 0, 3, (P, 0, 9))]
    choice = choose(footers, PARTITIONS)
    assert chosen(choice) == [(2, 2, 0, "3")]
    assert len(choice.uncommitted) == 2


def test_the_last_decision_counts_as_committed() -> None:
    choice = choose([footer((1, 2), 0, 1, (P, 0, 5)), footer((1, 4), 0, 2, (P, 5, 6))], PARTITIONS)
    assert chosen(choice) == [(1, 2, 0, "1"), (1, 4, 0, "2")]


def test_of_two_tries_that_one_counts_after_which_the_next_decision_continues() -> None:
    shorter, longer = footer((1, 2), 0, 1, (P, 0, 5)), footer((1, 2), 0, 2, (P, 0, 8))
    assert chosen(choose([shorter, longer, footer((1, 4), 0, 3, (P, 8, 9))], PARTITIONS))[0] == (1, 2, 0, "2")
    assert chosen(choose([shorter, longer, footer((1, 4), 0, 3, (P, 5, 9))], PARTITIONS))[0] == (1, 2, 0, "1")


def test_two_tries_of_the_last_decision_are_ambiguous_unless_they_are_the_same() -> None:
    one, same, other = (footer((1, 2), 0, number, (P, 0, end)) for number, end in ((1, 5), (2, 5), (3, 6)))
    choice = choose([one, same], PARTITIONS)
    assert (chosen(choice), choice.ambiguous) == ([(1, 2, 0, "1")], [])
    choice = choose([one, other], PARTITIONS)
    assert choice.ambiguous == [(str(one.name), str(other.name))]


def test_a_lost_object_leaves_a_hole_and_the_rest_of_its_decision() -> None:
    footers = [footer((1, 2), 1, 1, (Q, 0, 3)), footer((1, 4), 0, 2, (P, 5, 9), (Q, 3, 4)), footer((1, 6), 0, 3, (P, 12, 13))]
    choice = choose(footers, PARTITIONS)
    assert len(chosen(choice)) == 3
    (hole,) = choice.holes
    assert (hole.partition.source, hole.start, hole.end, hole.before) == (P, 9, 12, str(footers[2].name))


def test_a_try_that_was_not_decided_does_not_take_the_rest_of_its_decision_with_it() -> None:
    # Of slot 0 the committed object is lost and one of another try is left; slot 1 was committed.
    footers = [footer((1, 2), 0, 1, (P, 0, 9)), footer((1, 2), 1, 2, (Q, 0, 3)), footer((1, 4), 0, 3, (P, 5, 9), (Q, 3, 4))]
    assert chosen(choose(footers, PARTITIONS)) == [(1, 2, 1, "2"), (1, 4, 0, "3")]


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.integers(0, 1 << 32))
def test_what_was_committed_is_chosen_whatever_crashes_left(seed: int) -> None:
    """A model of runs: slots with several tries, decisions that are lost, older runs that go on writing."""
    random_ = random.Random(seed)
    sources = [SourcePartition("t", "id", number) for number in range(4)]
    positions = dict.fromkeys(sources, 0)
    committed: dict[SourcePartition, list[tuple[int, int, str]]] = {source: [] for source in sources}
    footers, tries = list[FooterSummary](), 0
    for epoch in range(1, 4):
        stale = dict(positions)
        for number in range(2, 2 + 2 * random_.randrange(1, 4), 2):
            winners: list[tuple[SourcePartition, int, int, str]] = []
            for slot in range(2):
                own = [source for at, source in enumerate(sources) if at % 2 == slot and random_.random() < 0.8]
                for attempt in range(random_.choice([1, 1, 2])):
                    tries += 1
                    rows = [(source, positions[source], positions[source] + random_.randrange(1, 4)) for source in own]
                    if rows:
                        footers.append(footer((epoch, number), slot, tries, *rows))
                        if attempt == 0:
                            winners += [(*row, f"{tries:08x}") for row in rows]
            if random_.random() < 0.3:
                break  # the run died before the commit
            for source, start, end, attempt_id in winners:
                committed[source].append((start, end, attempt_id))
                positions[source] = end
        if epoch > 1 and random_.random() < 0.5:  # a run that was fenced continues with a decision of its own
            tries += 1
            footers.append(footer((epoch - 1, 98), 0, tries, (sources[0], stale[sources[0]], stale[sources[0]] + 2)))
    random_.shuffle(footers)
    partitions = PARTITIONS
    choice = choose(footers, partitions)
    if choice.ambiguous:
        return
    found: dict[SourcePartition, list[tuple[int, int, str]]] = {source: [] for source in sources}
    for decision in choice.decisions:
        for summary in decision:
            for partition, start, end, _ in summary.rows():
                found[partitions[partition].source].append((start, end, summary.name.try_id))
    assert not choice.holes
    assert not choice.overlaps
    for source in sources:
        ranges = [(start, end) for start, end, _ in committed[source]]
        assert [(start, end) for start, end, _ in found[source]][: len(ranges)] == ranges
        assert len(found[source]) <= len(ranges) + 1
