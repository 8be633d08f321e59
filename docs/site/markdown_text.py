"""Markdown from values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(header), _line(["---"] * len(header)), *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def words(text: str) -> str:
    """Escape `<placeholders>` of a sentence, which would be HTML."""
    return re.sub(r"(`[^`]*`)|<", lambda match: match[1] or "&lt;", text)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
