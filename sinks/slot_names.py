"""PURE: what the slots of a mirror are called on the target: their transactional ids, which name the receipts' groups as well."""

from __future__ import annotations


def transactional_id(mirror: str, slot: int) -> str:
    return f"{mirror}-{slot}"


def transactional_ids(mirror: str, slots: int) -> list[str]:
    return [transactional_id(mirror, slot) for slot in range(slots)]
