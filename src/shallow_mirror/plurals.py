"""Pure: counts with their nouns."""

from __future__ import annotations


def counted(count: int | None, noun: str, plural: str | None = None) -> str:
    """Return "1 batch", "0 batches", "1,200 records"; "? offsets" where the count is unknown.

    `plural`: of a noun that does not take an s, or es behind ch, sh, s and x.
    """
    if count == 1:
        return f"1 {noun}"
    many = plural or noun + ("es" if noun.endswith(("ch", "sh", "s", "x")) else "s")
    return f"{'?' if count is None else f'{count:,}'} {many}"
