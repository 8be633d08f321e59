"""The order of registrations."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.schemas import Schema
from shallow_mirror.schemas.registration_order import registration_order
from shallow_mirror.schemas.subject_versions import SchemaReference, SubjectVersion


def version(subject: str, number: int, schema_id: int, *references: tuple[str, int]) -> SubjectVersion:
    refers_to = tuple(SchemaReference(f"{name}.{of_name}", name, of_name) for name, of_name in references)
    return SubjectVersion(
        subject=subject, version=number, id=schema_id, schema=Schema(text=f'"{schema_id}"', references=refers_to)
    )


def test_what_is_referred_to_comes_first_also_with_a_higher_id() -> None:
    order, line, money = version("order", 1, 1, ("line", 1)), version("line", 1, 2, ("money", 1)), version("money", 1, 3)
    assert registration_order([order, line, money]) == [money, line, order]


def test_lower_versions_of_a_subject_come_first_also_with_a_higher_id() -> None:
    first, second = version("a", 1, 9), version("a", 2, 3)
    assert registration_order([second, first]) == [first, second]


def test_references_to_what_is_registered_already_are_ignored() -> None:
    order = version("order", 1, 1, ("line", 1))
    assert registration_order([order]) == [order]


def test_a_cycle_ends() -> None:
    versions = [version("a", 1, 1, ("b", 1)), version("b", 1, 2, ("a", 1))]
    assert sorted(registration_order(versions), key=lambda each: each.id) == versions


def test_ten_thousand_versions_of_a_subject_are_no_recursion() -> None:
    versions = [version("a", number, 20_000 - number) for number in range(1, 10_001)]
    assert registration_order(reversed(versions)) == versions


@pytest.mark.slow
@given(st.data(), st.integers(1, 30))
def test_every_version_is_behind_what_it_refers_to(data: st.DataObject, count: int) -> None:
    versions: list[SubjectVersion] = []
    for number in range(count):
        chosen = data.draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        versions.append(version(f"s{number}", 1, data.draw(st.integers(1, 100)), *((f"s{other}", 1) for other in chosen)))
    ordered = registration_order(data.draw(st.permutations(versions)))
    positions = {each.key: position for position, each in enumerate(ordered)}
    assert len(positions) == count
    assert all(positions[key] < positions[each.key] for each in ordered for key in each.referenced_keys)
