"""Pure: counts with their nouns, and lists of names."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN_NAMES = 5


def counted(count: int | None, noun: str, plural: str | None = None) -> str:
    """Return "1 batch", "0 batches", "1,200 records"; "? offsets" if the count is unknown.

    `plural`: of a noun that does not take an s, or es behind ch, sh, s and x.
    """
    if count == 1:
        return f"1 {noun}"
    many = plural or noun + ("es" if noun.endswith(("ch", "sh", "s", "x")) else "s")
    return f"{'?' if count is None else f'{count:,}'} {many}"


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and the number of the others."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - _SHOWN_NAMES
    return ", ".join(distinct[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
