"""Exit codes of the process."""

from __future__ import annotations

from shallow_mirror.errors import ConfigError, FencedError, MirrorError, RecoverNeededError

EXIT_ERROR, EXIT_CONFIG, EXIT_FENCED, EXIT_RECOVER, EXIT_WAITS = 1, 2, 3, 4, 5
EXIT_DIFFERENT, EXIT_REFUSED, EXIT_LEFT, EXIT_INTERRUPTED = 1, 1, 1, 130


def exit_code_of(error: MirrorError) -> int:
    """Return the exit code of an error that ends a command."""
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case FencedError():
            return EXIT_FENCED
        case RecoverNeededError():
            return EXIT_RECOVER
        case _:
            return EXIT_ERROR
