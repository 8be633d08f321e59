"""Pure: what an import of a configuration has to tell."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NOT_IN_VARIABLES = re.compile(r"[^A-Z0-9]+")


@dataclass(frozen=True, slots=True)
class Finding:
    """A property that has no counterpart, or means something else."""

    property_name: str
    """As in the file; a default of MirrorMaker 2 in brackets."""
    text: str
    """What differs, and what to do."""

    def document(self) -> dict[str, str]:
        return {"property": self.property_name, "text": self.text}


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that a mirror file refers to."""

    name: str
    text: str
    """What it has to hold, without the value."""

    def document(self) -> dict[str, str]:
        return {"name": self.name, "text": self.text}


def variable_name(alias: str, what: str) -> str:
    """Return the name of the environment variable for a secret of a cluster."""
    return _NOT_IN_VARIABLES.sub("_", f"{alias}_{what}".upper()).strip("_")
