"""Where the archive of a broker's classes is (`broker_classes`), and the options of Java that use it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from shallow_mirror.local_kafka.jars import cache_folder


def archive_of(java: str, jars: Sequence[Path]) -> Path | None:
    """Return the path for this Java and these jars, written or not; None where Java has no archive of its own to build on."""
    base = Path(java).resolve().parent.parent / "lib" / "server" / "classes.jsa"
    if not base.is_file():
        return None
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in (base, *sorted(jars))]
    identity = hashlib.sha256(repr((str(base), states)).encode()).hexdigest()[:16]
    return cache_folder() / f"broker-classes-{identity}.jsa"


def options_with_archive(java: str, jars: Sequence[Path]) -> tuple[str, ...]:
    """Return the option that uses the archive; none where it is not written."""
    archive = archive_of(java, jars)
    return (f"-XX:SharedArchiveFile={archive}",) if archive is not None and archive.is_file() else ()
