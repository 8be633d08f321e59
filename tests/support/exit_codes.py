"""Exit codes of the command line."""

from __future__ import annotations

import pytest

from shallow_mirror import cli


def exit_code(*arguments: str) -> int:
    """Run the command line in this process. Return its exit code."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return int(caught.value.code or 0)
