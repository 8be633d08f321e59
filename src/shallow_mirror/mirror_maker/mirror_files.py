"""For the cli: a configuration of MirrorMaker 2 is read, and a mirror file for each of its flows is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.mirror_maker.findings import Finding
from shallow_mirror.mirror_maker.flows import Flow, flows_of
from shallow_mirror.mirror_maker.mirror_document import ImportedMirror, imported_mirror, unused
from shallow_mirror.mirror_maker.properties_file import parse

_MAX_FILE_BYTES = 4 << 20
"""Of a properties file: larger ones are something else."""


@dataclass(frozen=True, slots=True)
class Import:
    """The mirrors of one file."""

    path: Path
    mirrors: tuple[ImportedMirror, ...]
    findings: tuple[Finding, ...]
    """Of the file as a whole, the same for each mirror."""

    def sentences(self, mirror: ImportedMirror) -> list[str]:
        """Return the lines that a user has to read, with empty ones between their three kinds."""
        told = (*mirror.findings, *self.findings)
        parts = [
            ("Set these environment variables:", [f"{variable.name}: {variable.text}" for variable in mirror.variables]),
            ("What is different from MirrorMaker 2:", [f"{finding.property_name}: {finding.text}" for finding in told]),
            ("Correct this before `shallow-mirror run`:", problems_of(mirror)),
        ]
        return [line for title, lines in parts if lines for line in ("", title, *(f"  {line}" for line in lines))]

    def document(self, written: Sequence[Path]) -> dict[str, Any]:
        """Return what was written and what has to be told as JSON values."""
        return {
            "file": str(self.path),
            "mirrors": [
                {
                    "mirror": mirror.name,
                    "file": str(path),
                    "variables": [variable.document() for variable in mirror.variables],
                    "findings": [finding.document() for finding in mirror.findings],
                    "problems": problems_of(mirror),
                }
                for mirror, path in zip(self.mirrors, written, strict=True)
            ],
            "findings": [finding.document() for finding in self.findings],
        }


def problems_of(mirror: ImportedMirror) -> list[str]:
    """Return what a mirror file refuses of the document, apart from variables and files that may still be missing here."""
    try:
        MirrorConfig.from_document(mirror.document, folder=Path("/"))
    except ConfigError as error:
        unset = tuple(f"environment variable {variable.name} is not set" for variable in mirror.variables)
        return [problem for problem in error.problems if not problem.endswith(unset) and ": cannot read " not in problem]
    return []


def read_flows(path: Path) -> list[Flow]:
    """Return the flows that are enabled in `path`. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {_MAX_FILE_BYTES >> 20} MiB: it is no configuration of MirrorMaker 2")
    return flows_of(parse(content.decode("latin-1"), path.name), path.name)  # as Java reads properties files


def read(path: Path, *, target_name: str | None = None) -> Import:
    """Return the mirrors of the flows that are enabled in `path`. Raises ConfigError."""
    where, flows = path.name, read_flows(path)
    mirrors = tuple(imported_mirror(flow, where, target_name=target_name) for flow in flows)
    findings = tuple(Finding(name, "is unknown, or has no counterpart") for name in unused(flows))
    return Import(path, mirrors, findings)


def write(imported: Import, folder: Path, *, is_forced: bool = False) -> list[Path]:
    """Write one file for each mirror; return their paths. Raises ConfigError where one exists, before the first is written."""
    paths = [folder / f"{mirror.name}.yaml" for mirror in imported.mirrors]
    existing = [path for path in paths if path.exists()]
    if existing and not is_forced:
        raise ConfigError(f"{existing[0]} exists: --force writes it again, or choose another folder with --to")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for mirror, path in zip(imported.mirrors, paths, strict=True):
            path.write_text(_text_of(mirror, imported), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}: choose another folder with --to") from error
    return paths


def _text_of(mirror: ImportedMirror, imported: Import) -> str:
    lines = [f"Written from {imported.path.name}, flow {mirror.flow.source}->{mirror.flow.target}.", *imported.sentences(mirror)]
    comment = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return comment + yaml.safe_dump(mirror.document, sort_keys=False, allow_unicode=True, width=120)
