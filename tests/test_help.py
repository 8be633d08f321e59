"""Help of every command, and completion in shells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from tests.support.exit_codes import exit_code

from shallow_mirror.cli import app


def _all_commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _all_commands(f"{path} {name}", inner)


WHOLE: Any = typer.main.get_command(app)


def test_every_command_argument_and_option_has_help() -> None:
    every = list(_all_commands("shallow-mirror", WHOLE))
    assert len(every) > 30
    assert [path for path, command in every if not command.help and path != "shallow-mirror"] == []
    assert [(path, entry.name) for path, command in every for entry in command.params if not getattr(entry, "help", "")] == []


def test_every_command_is_in_a_group_of_the_help() -> None:
    assert [name for name, command in WHOLE.commands.items() if not isinstance(command.rich_help_panel, str)] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("completion", shell) == 0
    assert "_SHALLOW_MIRROR_COMPLETE" in capsys.readouterr().out


def test_another_shell_is_wrong_usage() -> None:
    assert exit_code("completion", "tcsh") == 2


@pytest.mark.slow
def test_the_program_answers_the_requests_of_the_script() -> None:
    request = {"_SHALLOW_MIRROR_COMPLETE": "complete_bash", "COMP_WORDS": "shallow-mirror sta", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from shallow_mirror.cli import main; main()"]
    done = subprocess.run(command, env={**os.environ, **request}, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["status"], done.stderr
