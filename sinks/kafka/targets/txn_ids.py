"""Pure: the transactional ids of a mirror's slots, which are also the names of the consumer groups of their receipts."""

from __future__ import annotations


def transactional_id(mirror: str, slot: int) -> str:
    return f"{mirror}-{slot}"


def id_count(slots: int) -> int:
    """Return how many transactional ids a run may use.

    Each slot has a spare one, for as long as its last transaction waits for a partition that does not accept the marker.
    """
    return 2 * slots


def transactional_ids(mirror: str, slots: int) -> list[str]:
    return [transactional_id(mirror, slot) for slot in range(slots)]
