"""The section `schemas` of the mirror file: both Schema Registries, and the scope of the copy."""

from __future__ import annotations

import urllib.parse
from typing import Annotated, Literal

from pydantic import Field

from shallow_mirror.broker.auth import is_only_references
from shallow_mirror.config.sections import NamePatterns
from shallow_mirror.config.values import OrOff, Section, SyncInterval, checked, parse_sync, require_http_url


def _require_registry_url(url: str) -> None:
    require_http_url(url, example="https://registry.east:8081", login="username, and password by reference")
    parts = urllib.parse.urlsplit(url)
    if parts.query or parts.fragment:
        raise ValueError("must end with the path of the API, without ? and #")


def _require_reference(secret: str) -> None:
    if secret and not is_only_references(secret):
        raise ValueError("secrets are given by reference only: ${env:NAME}, ${file:PATH} or ${secret:scope/key}")


RegistryUrl = Annotated[str, checked(_require_registry_url)]
SecretReference = Annotated[str, checked(_require_reference)]


class RegistrySettings(Section):
    """A Schema Registry with the Confluent API. `url` None: not used."""

    url: RegistryUrl | None = Field(
        default=None, description="`https://registry.east:8081`, with the path of the API if it has one"
    )
    username: str = Field(default="", description="user of HTTP basic authentication")
    password: SecretReference = Field(default="", repr=False, description="its password, by reference")
    token: SecretReference = Field(default="", repr=False, description="bearer token, by reference, instead of a user")
    ca_file: str = Field(default="", description="PEM file of the CA of the registry; not set: the CAs of the system")

    def problems(self) -> list[str]:
        """Return the settings that contradict each other; each begins with its key."""
        problems = []
        if self.username and self.token:
            problems.append("token: excludes username: give one of them")
        if bool(self.username) != bool(self.password):
            problems.append("username and password: give both or none")
        if self.url is None and (self.username or self.password or self.token or self.ca_file):
            problems.append("url: is missing")
        if self.ca_file and self.url is not None and self.url.startswith("http:"):
            problems.append("ca_file: has no effect with an http: URL")
        return problems


class SchemaSettings(NamePatterns):
    """Schemas of which subjects are copied, and whether compatibility levels are. `include`, `exclude`: names of subjects.

    `sync`: how often a running mirror registers what is missing; `report_only`: it only reports that.
    """

    source: RegistrySettings = RegistrySettings()
    target: RegistrySettings = RegistrySettings()
    compatibility: Annotated[Literal["all", "subjects", "off"], OrOff] = "all"
    sync: SyncInterval = "off"
    report_only: bool = False

    @property
    def sync_s(self) -> float | None:
        return parse_sync(self.sync)

    @property
    def has_registries(self) -> bool:
        return self.source.url is not None and self.target.url is not None

    def problems(self) -> list[str]:
        """Return missing and contradicting settings."""
        sides = (("source", self.source), ("target", self.target))
        problems = [f"schemas.{side}.{problem}" for side, registry in sides for problem in registry.problems()]
        if problems or self.has_registries:
            return problems
        if self.source.url is None and self.target.url is None:
            return [] if self.sync_s is None else ["schemas.sync: needs schemas.source.url and schemas.target.url"]
        return [f"schemas.{side}.url: is missing" for side, registry in sides if registry.url is None]
