"""`run`: the mirror."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from shallow_mirror.commands import sessions
from shallow_mirror.commands.options import Conf
from shallow_mirror.commands.signals import stop_on_signals

if TYPE_CHECKING:
    from shallow_mirror.config import MirrorConfig


def run(
    conf: Conf,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Catch up to the offsets of the start, then end.")
    ] = False,
    for_seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0.0, help="End after so many seconds.")
    ] = None,
) -> None:
    """Run the mirror until Ctrl-C or SIGTERM, which end it at a micro-batch boundary (a second one ends it at once)."""
    from shallow_mirror.streaming.mirror import Mirror

    mirror = Mirror.from_file(conf)
    _log_settings(mirror.config)
    stop_on_signals(mirror)
    mirror.run(sessions.submitted_session(), available_now=available_now, for_seconds=for_seconds)


def _log_settings(config: MirrorConfig) -> None:
    logging.getLogger(__name__).info("mirror %s: tables %s, Spark checkpoint %s", config.mirror, config.tables, config.checkpoint)
