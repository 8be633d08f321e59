"""Driver, for the cli: the result of a verification as files to keep: JSON, a page of HTML, and their signatures."""

from __future__ import annotations

import hashlib
import json
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.report.evidence_page import evidence_page
from shallow_mirror.report.signature import Signer
from shallow_mirror.report.written_file import write_whole
from shallow_mirror.verify import VerifyReport
from shallow_mirror.version import __version__

FORMAT = 1
"""Of the JSON document; a larger one is read differently."""

DIGEST = (
    "sum modulo 2^256 of one BLAKE2b-256 digest of each equal item: source offset and target offset (8 bytes each, big-endian), "
    "level (1 byte; 0: a batch, 1: a record, 3: a batch that cannot be opened), and 40 bytes of content, little-endian. Of a "
    "batch: CRC-32C of its payload, size, record count, last offset delta (4 bytes each), base and maximum timestamp (8 each), "
    "attributes (2), zeros (6). Of a record: timestamp (8), CRC-32C of key and of value (4 each), BLAKE2b-192 of key, value and "
    "headers with their lengths (24)"
)


@dataclass(frozen=True, slots=True)
class EvidenceFiles:
    """The files of a report. Signatures are beside them, with the suffix `.sig`."""

    json: Path
    page: Path
    signer: Signer | None

    @classmethod
    def of(cls, name: Path, signer: Signer | None) -> EvidenceFiles:
        """Return the files by their name with or without a suffix.

        Raises ConfigError if the folder does not exist: a verification may take hours until the files are written.
        """
        stem = name.with_suffix("") if name.suffix in (".json", ".html") else name
        if not stem.parent.is_dir():
            raise ConfigError(f"--report: {stem.parent} is no folder")
        return cls(stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.html"), signer)

    def write(self, document: dict[str, Any]) -> list[Path]:
        """Write all files, each as a whole. Return their paths. Raises ConfigError."""
        content = json.dumps(document, indent=1).encode() + b"\n"
        sha256 = hashlib.sha256(content).hexdigest()
        page = evidence_page(document, self.json.name, sha256).encode()
        written = [(self.json, content), (self.page, page)]
        if self.signer is not None:
            written += [(path.with_name(f"{path.name}.sig"), self.signer.sign(signed)) for path, signed in written]
        for path, bytes_of_it in written:
            write_whole(path, bytes_of_it)
        return [path for path, _ in written]


def evidence_document(
    config: MirrorConfig | RestoreConfig,
    report: VerifyReport,
    topics: list[str] | None,
    began_at: datetime,
    ended_at: datetime,
    signer: Signer | None,
) -> dict[str, Any]:
    """Return the JSON document. `topics`: those that were asked for; None: all."""
    if isinstance(config, RestoreConfig):
        source: dict[str, Any] = {"kind": "archive", "tables": config.archive.tables, "objects": config.archive.objects}
    else:
        source = _cluster(config.source.alias, config.source.client.value("bootstrap.servers"))
    return {
        "kind": "verification of a restore" if isinstance(config, RestoreConfig) else "verification of a mirror",
        "format": FORMAT,
        "result": result_of(report),
        "began_at": began_at.astimezone(UTC).isoformat(timespec="seconds"),
        "ended_at": ended_at.astimezone(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "shallow_mirror": __version__,
        "mirror": config.mirror,
        "source": {**source, "cluster_id": report.source_cluster_id},
        "target": {
            **_cluster(config.target.alias, config.target.client.value("bootstrap.servers")),
            "cluster_id": report.target_cluster_id,
        },
        "asked_for": {"topics": topics, "deep": report.is_deep},
        "digest": DIGEST,
        "signed_with": None if signer is None else {"algorithm": "Ed25519", "public_key_sha256": signer.fingerprint},
        "verification": report.document(),
    }


def result_of(report: VerifyReport) -> str:
    """Return the result in few words. It is `equal` only if everything that was asked for was compared to the end."""
    if report.difference_counts:
        return "different"
    if report.stopped_by is not None:
        return "stopped before the end"
    return "not everything covered" if report.uncovered else "equal"


def _cluster(alias: str, servers: str) -> dict[str, Any]:
    return {"kind": "cluster", "alias": alias, "bootstrap_servers": servers}
