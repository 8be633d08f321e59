"""Reading a YAML file of settings, and the places that it names."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from shallow_mirror.checkpoints import schema_of
from shallow_mirror.config.problems import client_problems, storage_problems, validation_problem, yaml_problem
from shallow_mirror.errors import ConfigError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

_DATE = "tag:yaml.org,2002:timestamp"

M = TypeVar("M", bound=BaseModel)


def read_yaml(path: Path, title: str) -> object:
    """Return the document in a file. `title`: its name in messages. Raises ConfigError."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {title} {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {yaml_problem(error)}") from None


def validate(model: type[M], document: object, kind: str, *, clients: Sequence[str] = ()) -> tuple[M | None, list[str]]:
    """Return the settings of a parsed file, None if pydantic rejects them, and every problem.

    `kind`: of the file, also its first key. `clients`: its sections with client properties. Raises ConfigError if the document
    is not a mapping.
    """
    if not isinstance(document, dict):
        raise ConfigError(f"the {kind} file holds no settings: it must be a YAML mapping that begins with '{kind}: <name>'")
    config: M | None = None
    problems: list[str] = []
    try:
        config = model.model_validate(document)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=True)
        problems += [validation_problem(error, model) for error in errors]
    problems += client_problems(document, clients)
    problems += storage_problems(document)
    return config, problems


def absolute(location: str, folder: Path) -> str:
    """Return a location with a folder of this machine as an absolute path; a URI or a schema stays as it is."""
    if location.startswith("file://"):
        location = location.removeprefix("file://")
    if _URI.match(location) or schema_of(location) is not None:
        return location
    return str((folder / Path(location).expanduser()).resolve())


def spark_log_of(name: str, tables: str, checkpoint: str) -> Path:
    """Return the log file of a local session: beside the tables or the checkpoint, whichever is on this machine."""
    if tables.startswith("/"):
        return Path(tables) / "_spark.log"
    if checkpoint.startswith("/"):
        return Path(f"{checkpoint}.log")
    return Path(tempfile.gettempdir()) / f"{name}.spark.log"


class _UniqueKeys(yaml.SafeLoader):
    """A loader that rejects a repeated key; YAML's own keeps the last of several equal keys silently.

    It also says where a value is that cannot be read, such as the 30th of February.
    """

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, AttributeError) as error:
            # The error of a date names no value, which may be a secret.
            problem = str(error) if node.tag == _DATE and isinstance(error, ValueError) else "this value cannot be read"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            # Others, such as those of a template ({{ name }}), are rejected by YAML's own loader.
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, "the same key for the second time", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
