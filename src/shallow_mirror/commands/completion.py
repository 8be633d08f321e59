"""`completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer import completion as typer_completion


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register_shells() -> None:
    """Let the process answer the requests of these scripts: they call the program with a variable in its environment."""
    typer_completion.completion_init()  # type: ignore[attr-defined]  # typer re-exports it


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that reads the script.")]) -> None:
    """Print the script that completes commands and options in a shell.

    For bash: `shallow-mirror completion bash > ~/.local/share/bash-completion/completions/shallow-mirror`.
    """
    script = typer_completion.get_completion_script(  # type: ignore[attr-defined]
        prog_name="shallow-mirror", complete_var="_SHALLOW_MIRROR_COMPLETE", shell=shell.value
    )
    print(script)
