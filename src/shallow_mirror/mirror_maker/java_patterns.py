"""Pure: lists of Java's regular expressions on whole names, as MirrorMaker 2 has them, as those of Python."""

from __future__ import annotations

import re
import warnings

_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")
_NAMED_REFERENCE = re.compile(r"\\k<(\w+)>")
_ONLY_IN_JAVA = re.compile(r"\\[pPhHRXGz]|&&")
"""Classes of characters by name, intersections of classes, and anchors that Python does not have or that mean something else."""


def split_list(value: str) -> list[str]:
    """Return the entries of a comma-separated list, as Kafka splits it: also inside of a regular expression."""
    return [entry for entry in (part.strip() for part in value.split(",")) if entry]


def as_python(pattern: str) -> tuple[str, str | None]:
    """Return the regular expression for Python, and why it is not the same; None: it is."""
    converted = _QUOTED.sub(lambda match: re.escape(match[1]), pattern)
    converted = _NAMED_REFERENCE.sub(r"(?P=\1)", _NAMED_GROUP.sub("(?P<", converted))
    if (foreign := _ONLY_IN_JAVA.search(converted)) is not None:
        return pattern, f"{foreign[0]} has no counterpart in Python's regular expressions"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(converted)
    except re.error as error:
        return pattern, f"it is not a regular expression of Python: {error}"
    return converted, None
