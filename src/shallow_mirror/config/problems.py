"""Problems of a mirror file, in sentences that name the setting."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store import option_problems


def yaml_problem(error: yaml.YAMLError) -> str:
    """Return the problem and its place, without the line itself, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be read"
    return problem if mark is None else f"{problem} in line {mark.line + 1}, column {mark.column + 1}"


def validation_problem(error: Any, root: type[BaseModel]) -> str:
    """Return the sentence for one entry of pydantic's list of errors. `root`: the model of the whole file."""
    path = tuple(error["loc"])
    where = ".".join(str(key) for key in path)
    if error["type"] == "extra_forbidden":
        section = _section_at(path[:-1], root)
        names = [] if section is None else [field.alias or name for name, field in section.model_fields.items()]
        near = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.5)
        return f"{where}: unknown key; " + (f"did you mean {near[0]}?" if near else f"known here: {', '.join(names)}")
    if error["type"] == "too_short":
        return f"{where}: an empty list: at least one is needed"
    if error["type"] == "missing":
        return f"{where}: is missing"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if error["type"] == "value_error":
        return f"{where}: {message}"
    # Client properties, storage options, logins of registries and headers of hooks may be secrets: their values are never shown.
    is_hidden = {"client", "options", "password", "token", "headers"}.intersection(path) or isinstance(
        error["input"], dict | list
    )
    return f"{where}: {message}" + ("" if is_hidden else f", not {error['input']!r}")


def _section_at(path: tuple[int | str, ...], root: type[BaseModel]) -> type[BaseModel] | None:
    section: Any = root
    for key in path:
        field = section.model_fields.get(key)
        section = None if field is None else field.annotation
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
    return section  # type: ignore[no-any-return]


def storage_problems(document: Mapping[str, Any]) -> list[str]:
    """Return the problems of `storage.options`; nothing if pydantic reports the section itself."""
    section = document.get("storage")
    options = section.get("options") if isinstance(section, Mapping) else None
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        return []
    return [f"storage.options.{problem}" for problem in option_problems(options)]


def client_problems(document: Mapping[str, Any], sides: Sequence[str]) -> list[str]:
    """Return the problems of the clusters' client properties; nothing if pydantic reports the section itself."""
    problems: list[str] = []
    for side in sides:
        section = document.get(side)
        properties = section.get("client") if isinstance(section, Mapping) else None
        if isinstance(properties, Mapping) and all(isinstance(key, str) for key in properties):
            try:
                client = ClientConfig.from_properties(properties, where=f"{side}.client")
            except ConfigError as error:
                problems += error.problems
            else:
                problems += [f"{side}.client.{problem}" for problem in _key_file_problems(client)]
    return problems


def _key_file_problems(client: ClientConfig) -> Sequence[str]:
    if not client.uses_tls:
        return ()
    from shallow_mirror.broker.auth import TlsSettings

    try:
        TlsSettings.of(client).context()
    except ConfigError as error:
        return error.problems
    return ()
