"""Driver and executors: the economies that rely on internals of Spark, Java or pyarrow, their switch, and what a failure does.

No run needs them. One that fails is switched off until the process ends, with one line in the log, and the run continues.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from shallow_mirror.errors import ConfigError

_log = logging.getLogger(__name__)

WITHOUT_VARIABLE = "SHALLOW_MIRROR_WITHOUT"
"""Environment variable: names of economies to do without, separated by commas."""


class Economy(StrEnum):
    CLASS_ARCHIVE = "class-archive"
    PLANNING_DAEMONS = "planning-daemons"
    PYARROW_ALONE = "pyarrow-alone"
    WORKER_DAEMON = "worker-daemon"


_COSTS = {
    Economy.CLASS_ARCHIVE: "Spark starts more slowly",
    Economy.PLANNING_DAEMONS: "Spark's planning daemons stay in memory",
    Economy.PYARROW_ALONE: "pyarrow may import pandas and datasets, which take memory",
    Economy.WORKER_DAEMON: "Python workers start more slowly",
}

_failed: set[Economy] = set()


def check_switches() -> None:
    """Raise ConfigError if the variable names an economy that does not exist."""
    unknown = sorted(_switched_off().difference(Economy))
    if unknown:
        raise ConfigError(f"{WITHOUT_VARIABLE} names {', '.join(unknown)}: there are {', '.join(Economy)}")


def is_used(economy: Economy) -> bool:
    """Return whether the economy is neither switched off nor has failed in this process."""
    return economy not in _switched_off() and economy not in _failed


@contextmanager
def or_without(economy: Economy) -> Iterator[None]:
    """Run the body; whatever it raises, the economy is switched off and the caller continues after the `with` block."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - what internals of another version raise is not known, and no run may end by it
        switch_off(economy, error)


def switch_off(economy: Economy, error: Exception) -> None:
    """Do without the economy until the process ends, and log its cost and the first line of the cause."""
    if economy not in _failed:
        _failed.add(economy)
        _log.warning("going on without %s: %s (%s)", economy, _COSTS[economy], _cause(error))


def _cause(error: Exception) -> str:
    """Return one line. An error of py4j asks the JVM for its text, in which the first line only names the call."""
    kind = type(error).__name__
    try:
        first, _, rest = str(error).partition("\n")
    except Exception:  # noqa: BLE001 - the connection to the JVM may be what failed
        return kind
    if first.startswith("An error occurred while calling") and rest:
        return rest.partition("\n")[0].removeprefix(": ")
    return f"{kind}: {first}" if first else kind


def _switched_off() -> set[str]:
    return {name.strip() for name in os.environ.get(WITHOUT_VARIABLE, "").split(",")} - {""}
