"""Reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from markdown_text import code, table, words

from shallow_mirror import cli

_INTRODUCTION = """# Commands

Results go to standard output, logs and progress to standard error.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | stopped on an error |
| 2 | wrong usage or configuration; every problem is listed |
| 3 | another run of the same mirror took over; do not restart this one |
| 4 | the outcome of the last transaction is unknown: run `shallow-mirror recover` |
| 130 | interrupted |

Exit code 1 also means: `verify`: a difference; `preflight`: something will be refused; `quarantine retry`: a batch was
refused again; `groups --apply`: an offset is not in place; `acls`: the target lacks an ACL; `schemas`: the target's
registry lacks a schema. A process manager must not restart after 2, 3 and 4. What to do after each error: [error
remedies](error-remedies.md).
"""


def commands_page(root: Path) -> str:
    whole = typer.main.get_command(cli.app)
    return _INTRODUCTION + "".join(_section(path, command) for path, command in commands("shallow-mirror", whole))


def commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """(words to type, command) of every command that does something, in the order of `--help`."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, inner_command in inner.items():
        if not inner_command.hidden:
            yield from commands(f"{path} {name}", inner_command)


def _section(path: str, command: Any) -> str:
    parameters = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [_metavar(argument) for argument in parameters if argument.param_type_name == "argument"]
    usage = " ".join([path, *arguments, *(["[OPTIONS]"] if len(arguments) < len(parameters) else [])])
    rows = [
        (code(_names(parameter)), words(getattr(parameter, "help", None) or ""), code(_default(parameter)))
        for parameter in parameters
    ]
    help_text = words(inspect.cleandoc(command.help or "").partition("\f")[0])
    return f"\n## {path.removeprefix('shallow-mirror ')}\n\n```\n{usage}\n```\n\n{help_text}\n\n" + (
        table(("", "meaning", "default"), rows) if rows else ""
    )


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _metavar(parameter)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} {parameter.metavar or 'VALUE'}"


def _metavar(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper()).strip("[]")
    return f"{name}..." if parameter.nargs == -1 else name


def _default(parameter: Any) -> str:
    default = parameter.default
    return (
        "" if default is None or default is False or callable(default) or repr(default).startswith("Sentinel") else str(default)
    )
