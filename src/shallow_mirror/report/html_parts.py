"""Pure: parts of the pages: tables, sections, times. Every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from shallow_mirror.report.style import STYLE


def whole_page(title: str, body: str) -> str:
    """Return a page of its own. `title` is a text, `body` HTML."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{STYLE}</style>'
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body><main>{body}</main></body></html>\n'


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], wide: Sequence[int] = ()) -> str:
    """Return a table. Cells of the columns `wide` wrap."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(_cell(value, number in wide) for number, value in enumerate(row))}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any, is_wide: bool) -> str:
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    css = ' class="wide"' if is_wide else ""
    return f"<td{css}>{escape('?' if value is None else str(value))}</td>"


def section(title: str, about: str, body: str) -> str:
    more = f'<p class="about">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{more}{body}</section>"


def duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def moment(at_ms: float | None) -> str:
    return "?" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def moment_of(at: datetime | None) -> str:
    return "" if at is None else moment(at.timestamp() * 1000)
