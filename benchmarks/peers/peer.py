"""What a peer is: a process that copies one topic, from its begin to what is its end when it starts."""

from __future__ import annotations

import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.corpora import Corpus
from benchmarks.peer_listeners import Access
from benchmarks.window import MicroBatchEnd
from shallow_mirror.errors import MirrorError


class PeerMissingError(MirrorError):
    """What a peer needs is not on this machine. Nothing was started."""


class PeerFailedError(MirrorError):
    """A peer ended with an error, or stopped to copy."""


@dataclass(frozen=True, slots=True)
class Job:
    """`alias` is new in every run; the target topic is `<alias>.<source topic>` and exists. `folder` is empty."""

    corpus: Corpus
    access: Access
    source_topic: str
    alias: str
    ends: Mapping[int, int]
    """Of the source's partitions: their last stable offsets."""
    folder: Path

    @property
    def target_topic(self) -> str:
        return f"{self.alias}.{self.source_topic}"

    def as_json(self, **more: str) -> str:
        """For the programs that copy. `ca`: a PEM file, where connections are to be TLS."""
        job = {"source": self.access.source, "target": self.access.target}
        job |= {"source_topic": self.source_topic, "target_topic": self.target_topic}
        job |= {} if self.access.ca_file is None else {"ca": str(self.access.ca_file)}
        return json.dumps({**job, "partitions": len(self.ends), "ends": self.ends, "codec": self.corpus.codec_name, **more})

    @property
    def log_file(self) -> Path:
        return self.folder / "log.txt"


class Peer(ABC):
    """`ends_itself`: otherwise it is ended when the target holds all and has been quiet for some seconds.

    `target_settings`: with which its target topic is created.
    """

    name: str
    ends_itself = True
    target_settings: Mapping[str, str] = MappingProxyType({})

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Fetch or build what it needs, outside of what is measured. Raises PeerMissingError, ConfigError, JarFetchError."""

    @abstractmethod
    def launch(self, job: Job) -> subprocess.Popen[bytes]:
        """Its process tree is what is measured, from here on."""

    def set_going(self, job: Job, process: subprocess.Popen[bytes]) -> None:  # noqa: B027 - most begin by themselves
        """Send the running process what it needs before it copies. Raises PeerFailedError."""

    def micro_batches(self, job: Job) -> list[MicroBatchEnd] | None:
        """After its end, in order; None for one that does not work in such."""
        return None

    def remarks(self, job: Job) -> list[str]:
        """After its end: what is to be said beside its figures."""
        return []


def started(job: Job, command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """In a process group of its own; what it says goes to the log of the job."""
    with job.log_file.open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=job.folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def log_tail(job: Job, lines: int = 30) -> str:
    if not job.log_file.is_file():
        return ""
    return "\n".join(job.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
