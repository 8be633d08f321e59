"""Driver: the requests to a Schema Registry: subjects, versions, compatibility levels, modes."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from shallow_mirror.config import MirrorConfig, RegistrySettings
from shallow_mirror.errors import ConfigError
from shallow_mirror.schemas.http_json import JsonClient, JsonResponse
from shallow_mirror.schemas.subject_versions import DEFAULT_CONTEXT, Schema, SchemaId, SubjectVersion

_NOT_FOUND = 404
_LEAST_PAGE = 500
"""A list of so many items may be the first page only: registries limit pages to 1,000 and more unless configured otherwise."""
_NO_MODES = (404, 405)
"""Without support of modes a registry has no such path, or it only answers GET."""
_NOT_PERMITTED = 42205

IMPORT, READONLY, READWRITE = "IMPORT", "READONLY", "READWRITE"


class SchemaRegistry:
    """Every request raises ConfigError if only settings, permissions or another registry help, RetriableError otherwise."""

    def __init__(self, settings: RegistrySettings, *, side: str, alias: str, sleep: Callable[[float], None] = time.sleep) -> None:
        assert settings.url is not None
        self.url = settings.url.rstrip("/")
        self.name = f"schema registry of {alias} at {self.url}"
        self._client = JsonClient(settings, name=self.name, section=f"schemas.{side}", sleep=sleep)

    def close(self) -> None:
        self._client.close()

    def subjects(self) -> list[str]:
        """Return all subjects of all contexts, also those of which every version is soft-deleted."""
        names = self._all_items("/subjects?deleted=true")
        if names is None:
            raise ConfigError(
                f"{self.name} has no /subjects (404): correct {self._client.section}.url, with the path of the API (Apicurio: "
                "/apis/ccompat/v7)"
            )
        return sorted(str(name) for name in names)

    def version_numbers(self, subject: str) -> dict[int, bool]:
        """Return whether each version of a subject is soft-deleted; empty if there is no such subject."""
        path = f"/subjects/{_quoted(subject)}/versions"
        existing, all_numbers = self._numbers(f"{path}?deleted=false"), self._numbers(f"{path}?deleted=true")
        return {number: number not in existing for number in sorted(existing | all_numbers)}

    def version(self, subject: str, number: int, *, is_deleted: bool = False) -> SubjectVersion | None:
        """Return a version of a subject; None if it does not exist, or not any more."""
        path = f"/subjects/{_quoted(subject)}/versions/{number}" + ("?deleted=true" if is_deleted else "")
        response = self._client.request("GET", path)
        if response.status == _NOT_FOUND:
            return None
        document = self._document(response, path)
        try:
            return SubjectVersion(
                subject=subject,
                version=int(document["version"]),
                id=int(document["id"]),
                schema=Schema.from_document(document),
                is_deleted=is_deleted,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._malformed(path, error) from None

    def has_version(self, subject: str, number: int) -> bool:
        """Return whether a version exists, deleted or not."""
        return self.version(subject, number, is_deleted=True) is not None

    def schema(self, schema_id: SchemaId) -> Schema | None:
        """Return the schema of an id; None if no schema has it."""
        path = f"/schemas/ids/{schema_id.id}"
        if schema_id.context != DEFAULT_CONTEXT:
            path += f"?subject={_quoted(f':.{schema_id.context}:')}"
        response = self._client.request("GET", path)
        if response.status == _NOT_FOUND:
            return None
        document = self._document(response, path)
        try:
            return Schema.from_document(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._malformed(path, error) from None

    def compatibility(self, subject: str = "") -> str | None:
        """Return the compatibility level of a subject, or of the registry; None if the subject has none of its own."""
        return self._value(f"/config{_below(subject)}", "compatibilityLevel")

    def set_compatibility(self, subject: str, level: str) -> None:
        response = self._client.request("PUT", f"/config{_below(subject)}", {"compatibility": level})
        self._require_success(response, f"set the compatibility level {level}", subject)

    def mode(self, subject: str = "") -> str | None:
        """Return the mode of a subject, or of the registry; None if the subject has none of its own, or without modes."""
        return self._value(f"/mode{_below(subject)}", "mode")

    def mode_in_force(self, subject: str) -> str | None:
        """Return the mode that a subject has, of its own or the registry's; None if the registry has no modes."""
        return self._value(f"/mode/{_quoted(subject)}?defaultToGlobal=true", "mode") or self.mode()

    def set_mode(self, subject: str, mode: str) -> None:
        """Set the mode of a subject. Without `force` a registry deletes soft-deleted versions when IMPORT is set."""
        path = f"/mode/{_quoted(subject)}" + ("?force=true" if mode == IMPORT else "")
        response = self._client.request("PUT", path, {"mode": mode})
        if mode == IMPORT and not response.is_success:
            raise ConfigError(
                f"{self.name} does not take mode {mode} for subject {subject} ({response.message}): allow changes of modes "
                "(Confluent: mode.mutability), or use a registry with import mode; without it ids cannot be equal"
            )
        self._require_success(response, f"set mode {mode}", subject)

    def reset_mode(self, subject: str) -> None:
        """Let a subject have the registry's mode again: as its own mode if the registry cannot delete modes (Confluent 6)."""
        response = self._client.request("DELETE", f"/mode/{_quoted(subject)}")
        if response.status not in _NO_MODES:
            self._require_success(response, "delete the mode", subject)
        elif self.mode(subject) is not None:
            self.set_mode(subject, self.mode() or READWRITE)

    def register(self, version: SubjectVersion) -> int:
        """Register a version with its id, in import mode, and return the id that the registry gave it."""
        path = f"/subjects/{_quoted(version.subject)}/versions"
        body = {**version.schema.document(), "id": version.id, "version": version.version}
        response = self._client.request("POST", path, body)
        self._require_success(response, f"register version {version.version} with id {version.id}", version.subject)
        try:
            return int(self._document(response, path)["id"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._malformed(path, error) from None

    def delete_version(self, version: SubjectVersion) -> None:
        """Delete a version softly. One that is deleted already stays so."""
        path = f"/subjects/{_quoted(version.subject)}/versions/{version.version}"
        response = self._client.request("DELETE", path)
        if response.status != _NOT_FOUND:
            self._require_success(response, f"delete version {version.version} softly", version.subject)

    def _numbers(self, path: str) -> set[int]:
        try:
            return {int(number) for number in self._all_items(path) or ()}
        except (TypeError, ValueError) as error:
            raise self._malformed(path, error) from None

    def _all_items(self, path: str) -> list[Any] | None:
        """Return the items of all pages of a list; None if it does not exist."""
        page = self._page(path)
        if page is None:
            return None
        items = dict.fromkeys(page)
        while page and len(page) >= _LEAST_PAGE:
            page = self._page(f"{path}&offset={len(items)}")
            if page is None or items.keys() >= set(page):  # a registry without pages repeats the first one
                break
            items |= dict.fromkeys(page)
        return list(items)

    def _page(self, path: str) -> list[Any] | None:
        """Return the items of a page; some registries send null instead of an empty one. None: there is no such list."""
        response = self._client.request("GET", path)
        if response.status == _NOT_FOUND:
            return None
        self._require_success(response, f"read {path}")
        items = [] if response.document is None else response.document
        if not isinstance(items, list) or not all(isinstance(item, str | int) for item in items):
            raise self._malformed(path, TypeError("no list of names or numbers"))
        return items

    def _value(self, path: str, key: str) -> str | None:
        response = self._client.request("GET", path)
        if response.status in _NO_MODES:
            return None
        value = self._document(response, path).get(key)
        return None if value is None else str(value)

    def _document(self, response: JsonResponse, path: str) -> dict[str, Any]:
        self._require_success(response, f"read {path}")
        if not isinstance(response.document, dict):
            raise self._malformed(path, TypeError("no object"))
        return response.document

    def _require_success(self, response: JsonResponse, what: str, subject: str = "") -> None:
        if response.is_success:
            return
        of_subject = f" of subject {subject}" if subject else ""
        remedy = (
            ". Its mode forbids it, or another client changed the mode meanwhile: run the command again"
            if response.error_code == _NOT_PERMITTED
            else ""
        )
        raise ConfigError(f"{self.name} refuses to {what}{of_subject}: {response.message} ({response.status}){remedy}")

    def _malformed(self, path: str, error: Exception) -> ConfigError:
        return ConfigError(
            f"{self.name}: the response to {path} is not that of a Schema Registry ({type(error).__name__}: {error}): correct "
            f"{self._client.section}.url"
        )


@contextmanager
def open_registries(config: MirrorConfig) -> Iterator[tuple[SchemaRegistry, SchemaRegistry]]:
    """Yield the registries of source and target. Raises ConfigError if the file has none."""
    settings = config.schemas
    if not settings.has_registries:
        raise ConfigError("schemas.source.url and schemas.target.url: are missing: give the URLs of both Schema Registries")
    source = SchemaRegistry(settings.source, side="source", alias=config.source.alias)
    target = SchemaRegistry(settings.target, side="target", alias=config.target.alias)
    with closing(source), closing(target):
        yield source, target


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _below(subject: str) -> str:
    return f"/{_quoted(subject)}" if subject else ""
