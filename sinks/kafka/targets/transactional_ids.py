"""PURE: what the slots of a mirror are called on the target: their transactional ids, which name the receipts' groups as well."""

from __future__ import annotations


def transactional_id(mirror: str, slot: int) -> str:
    return f"{mirror}-{slot}"


def ids_of(slots: int) -> int:
    """Return how many transactional ids a run may use: a spare one for each slot, while the last transaction of its own waits
    for a partition that does not take the marker."""
    return 2 * slots


def transactional_ids(mirror: str, slots: int) -> list[str]:
    return [transactional_id(mirror, slot) for slot in range(slots)]
