"""`run`: run the mirror."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shallow_mirror.commands import sessions
from shallow_mirror.commands.file_kinds import require_kind
from shallow_mirror.commands.options import AvailableNow, Conf, ForSeconds, LogFormatOption
from shallow_mirror.commands.run_logging import logging_as
from shallow_mirror.commands.signals import stop_on_signals

if TYPE_CHECKING:
    from shallow_mirror.config import MirrorConfig


def run(
    conf: Conf,
    available_now: AvailableNow = False,
    for_seconds: ForSeconds = None,
    log_format: LogFormatOption = "text",
) -> None:
    """Run the mirror until Ctrl-C or SIGTERM, which stop it at a micro-batch boundary (a second one stops it at once)."""
    with logging_as(log_format):
        from shallow_mirror.streaming.runner.mirror import Mirror

        require_kind(conf, "run")
        mirror = Mirror.from_file(conf)
        _log_settings(mirror.config)
        stop_on_signals(mirror)
        mirror.run(sessions.submitted_session(), available_now=available_now, for_seconds=for_seconds)


def _log_settings(config: MirrorConfig) -> None:
    logging.getLogger(__name__).info("mirror %s: tables %s, Spark checkpoint %s", config.mirror, config.tables, config.checkpoint)
