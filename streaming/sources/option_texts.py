"""Driver: options of a Spark source as texts, with every problem that is found in them.

Spark passes their names in lower case; messages show them as they are documented.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


class OptionTexts:
    """Options by name. A method that finds a problem adds it to `problems`, and returns a value that is not used."""

    def __init__(self, options: Mapping[str, str], names: Sequence[str], prefix: str) -> None:
        """`names` are the documented ones, besides those that begin with `prefix`."""
        self._options = {name.lower(): value for name, value in options.items()}
        self._names, self._prefix = names, prefix
        self.problems: list[str] = []

    def check_names(self) -> None:
        documented = {name.lower(): name for name in self._names}
        for name in sorted(self._options):
            if name.startswith(self._prefix) or name in documented:
                continue
            near = difflib.get_close_matches(name, documented, n=1)
            hint = f"did you mean {documented[near[0]]}?" if near else f"known are {self._prefix}* and {', '.join(self._names)}"
            self.problems.append(f"{name}: unknown option; {hint}")

    def prefixed(self) -> dict[str, str]:
        """Return the options that begin with the prefix, without it."""
        return {name.removeprefix(self._prefix): value for name, value in self._options.items() if name.startswith(self._prefix)}

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def one_of(self, name: str, values: Mapping[str, T], default: str) -> T:
        text = self._options.get(name.lower(), default)
        if text.lower() not in values:
            self.problems.append(f"{name}: {text!r} is not one of {', '.join(values)}")
        return values.get(text.lower(), values[default])

    def boolean(self, name: str, default: str) -> bool:
        return self.one_of(name, {"true": True, "false": False}, default)

    def number(self, name: str, default: int, *, least: int, most: int, unit: str) -> int:
        text = self.text(name)
        if text is None:
            return default
        if not text.isdecimal() or not least <= int(text) <= most:
            self.problems.append(f"{name}: {text!r} is not a {unit} from {least} to {most}")
            return default
        return int(text)
