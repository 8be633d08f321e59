"""`pause` and `resume`: topics that a mirror leaves alone for a while, without a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shallow_mirror.commands.options import Conf
from shallow_mirror.commands.sessions import session_for
from shallow_mirror.errors import ConfigError

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.controls import Controls

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of source topics.")]


def pause(conf: Conf, topics: Topics) -> None:
    """Copy nothing of these topics until `resume`.

    Also across restarts. A running mirror heeds it within seconds; what it is copying just then is finished. What retention
    deletes at the source meanwhile is lost.
    """
    with _controls(conf, topics) as controls:
        before = controls.paused()
        controls.add("pause", topics)
    for topic in topics:
        print(f"{topic}: {'was paused already' if topic in before else 'paused'}")


def resume(conf: Conf, topics: Topics) -> None:
    """Go on with paused topics, from where they stand."""
    with _controls(conf, topics) as controls:
        before = controls.paused()
        controls.add("resume", topics)
    for topic in topics:
        print(f"{topic}: {'goes on' if topic in before else 'was not paused'}")


@contextmanager
def _controls(conf: Path, topics: Sequence[str]) -> Iterator[Controls]:
    """Raises ConfigError with every topic that the mirror file does not include."""
    from shallow_mirror.checkpoints.controls import Controls
    from shallow_mirror.checkpoints.storage import MirrorStorage
    from shallow_mirror.config import MirrorConfig

    config = MirrorConfig.load(conf)
    foreign = [one for one in topics if not config.topics.is_included(one)]
    if foreign:
        raise ConfigError(
            [
                f"{one}: this mirror has no such topic (topics.include and topics.exclude of {conf}): give whole names"
                for one in foreign
            ]
        )
    with session_for(config, is_writing=True) as spark:
        yield Controls.open(MirrorStorage.to_write(config.table_location, config.tables_writer, spark))
