"""Everywhere: `${env:NAME}`, `${file:PATH}` and `${secret:SCOPE/KEY}` in client properties, resolved at the moment of use.

Nothing here keeps a value, and no message holds one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from shallow_mirror.errors import ConfigError

_REFERENCE = re.compile(r"\$\{(env|file|secret):([^}]*)\}")
_ONLY_REFERENCES = re.compile(rf"(?:{_REFERENCE.pattern})+")


def is_only_references(text: str) -> bool:
    """Return whether the text consists of references alone, with nothing of the value written out."""
    return _ONLY_REFERENCES.fullmatch(text.strip()) is not None


def references_in(text: str) -> tuple[str, ...]:
    """Return the references of a text, as they are written."""
    return tuple(match[0] for match in _REFERENCE.finditer(text))


def resolve(text: str) -> str:
    """Replace references by their values. Raises ConfigError that names the reference, never the value."""
    return _REFERENCE.sub(lambda match: _RESOLVERS[match[1]](match[2]), text)


def _of_environment(name: str) -> str:
    value = os.environ.get(name, os.environ.get(handed_over_name(f"${{env:{name}}}")))
    if value is None:
        raise ConfigError(f"environment variable {name} is not set")
    return value


def _of_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {path}: it is not text in UTF-8") from None


def _of_databricks(path: str) -> str:
    handed_over = os.environ.get(handed_over_name(f"${{secret:{path}}}"))
    if handed_over is not None:
        return handed_over
    scope, separator, key = path.partition("/")
    if not (scope and separator and key):
        raise ConfigError(f"${{secret:{path}}} is not ${{secret:scope/key}}")
    try:
        return str(_dbutils().secrets.get(scope, key))
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a runtime, its REST client or py4j raises
        raise ConfigError(f"secret {path} cannot be read from Databricks here ({type(error).__name__}): {_ELSEWHERE}") from None


_ELSEWHERE = "check the scope, the key and its permissions; outside of Databricks use ${env:NAME} or ${file:PATH}"


def _dbutils() -> Any:
    """Return the runtime's dbutils, or those of databricks-sdk with whatever credentials it finds."""
    try:
        from databricks.sdk.runtime import dbutils  # brought along by Databricks runtimes
    except ImportError:
        raise ConfigError(
            "${secret:...} needs Databricks, or the package databricks-sdk with credentials: use ${env:NAME} or ${file:PATH}"
        ) from None
    return dbutils


def may_be_missing_elsewhere(reference: str) -> bool:
    """Return whether another machine or process may lack the value. Files are expected on every machine."""
    return not reference.startswith("${file:")


def handed_over_name(reference: str) -> str:
    """Return the environment variable by which a driver hands a resolved reference to its Python workers."""
    return "SHALLOW_MIRROR_" + reference.encode().hex()


_RESOLVERS = {"env": _of_environment, "file": _of_file, "secret": _of_databricks}
