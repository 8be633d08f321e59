"""`run`: run one mirror, or several in one process."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from shallow_mirror.commands import sessions
from shallow_mirror.commands.file_kinds import require_kind
from shallow_mirror.commands.mirror_files import expand_folders, load_mirrors
from shallow_mirror.commands.options import AvailableNow, Confs, ForSeconds, LogFormatOption, exit_code_of_several
from shallow_mirror.commands.sessions import logging_as, stop_on_signals

if TYPE_CHECKING:
    from shallow_mirror.config import MirrorConfig


_log = logging.getLogger(__name__)


def run(
    conf: Confs,
    available_now: AvailableNow = False,
    for_seconds: ForSeconds = None,
    log_format: LogFormatOption = "text",
) -> None:
    """Run the mirror until Ctrl-C or SIGTERM, which stop it at a micro-batch boundary (a second one stops it at once).

    Several files, or a folder of them, run in this process on one Spark session. A mirror that ends with an error does not stop
    the others. At the end, the exit code is 3 if one was fenced, else 1, 4 or 2 if one ended with such an error.
    """
    with logging_as(log_format):
        paths, problems = expand_folders(conf)
        if len(paths) == 1 and not problems:
            from shallow_mirror.streaming.runs import Mirror

            require_kind(paths[0], "run")
            mirror = Mirror.from_file(paths[0])
            _log_settings(mirror.config)
            stop_on_signals(mirror)
            _freeze_imports()
            mirror.run(sessions.submitted_session(), available_now=available_now, for_seconds=for_seconds)
            return
        _run_several(load_mirrors(paths, problems, "run"), available_now=available_now, for_seconds=for_seconds)


def _run_several(configs: Sequence[MirrorConfig], *, available_now: bool, for_seconds: float | None) -> None:
    from shallow_mirror.streaming.runs import Mirrors

    for config in configs:
        _log_settings(config)
    mirrors = Mirrors(configs)
    stop_on_signals(mirrors)
    _freeze_imports()
    ends = mirrors.run(sessions.submitted_session(), available_now=available_now, for_seconds=for_seconds)
    failed = {end.mirror: type(end.error).__name__ for end in ends if end.error is not None}
    if failed:
        named = ", ".join(f"{mirror} ({error})" for mirror, error in failed.items())
        _log.error("%d of %d mirrors ended with an error: %s", len(failed), len(ends), named)
        raise typer.Exit(exit_code_of_several([end.error for end in ends]))


def _freeze_imports() -> None:
    """Leave what was imported out of garbage collections. It stays until the end, and each one would visit all of it."""
    gc.collect()
    gc.freeze()


def _log_settings(config: MirrorConfig) -> None:
    _log.info("mirror %s: tables %s, Spark checkpoint %s", config.mirror, config.tables, config.checkpoint)
