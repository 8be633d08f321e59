"""Exit codes of the process."""

from __future__ import annotations

from collections.abc import Sequence

from shallow_mirror.errors import ConfigError, FencedError, MirrorError, OlderTablesError, RecoverNeededError

EXIT_ERROR, EXIT_CONFIG, EXIT_FENCED, EXIT_RECOVER, EXIT_WAITS = 1, 2, 3, 4, 5
EXIT_DIFFERENT, EXIT_REFUSED, EXIT_LEFT, EXIT_INTERRUPTED = 1, 1, 1, 130


def exit_code_of(error: MirrorError) -> int:
    """Return the exit code of an error that ends a command."""
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case FencedError():
            return EXIT_FENCED
        case RecoverNeededError() | OlderTablesError():
            return EXIT_RECOVER
        case _:
            return EXIT_ERROR


def exit_code_of_several(ends: Sequence[BaseException | None]) -> int:
    """Return the exit code of a process whose mirrors have ended with these errors; None: a mirror ended without one.

    3 comes first, because a restart would take over again. 1 comes before 4 and 2: a restart helps the mirrors that ended with
    it, and does not harm the others, which end again as they did.
    """
    codes = {EXIT_ERROR if not isinstance(error, MirrorError) else exit_code_of(error) for error in ends if error is not None}
    return next((code for code in (EXIT_FENCED, EXIT_ERROR, EXIT_RECOVER, EXIT_CONFIG) if code in codes), 0)
