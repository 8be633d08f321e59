"""Driver: an archive of the classes of Spark's JVM (AppCDS), written after the first run, used by later starts.

Finding, verifying and linking some ten thousand classes is most of what Spark's start costs. Java maps the archive instead. It
checks on its own that the archive is of the same Java and the same jars, and starts without it, with a warning, if not.

Java writes it when its process ends, for ten CPU seconds and longer. A run does not wait for that: a process of its own
(`archive_keeper.py`) stays until the JVM has ended. Where such a process would be ended with the run, the run waits.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shallow_mirror.local_kafka import cache_folder
from shallow_mirror.streaming.spark.economies import Economy, or_without

_log = logging.getLogger(__name__)

_WRITTEN_WITHIN_S = 60.0
"""Where the run waits for it."""
_KEPT_WITHIN_S = 300.0
"""Where another process does, which then kills the JVM."""
_LEFT_AFTER_S = 600.0
"""What a killed run has written is removed by a start that comes so much later."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one Java and one set of jars. `path`: it is there once a run with a local session has ended."""

    path: Path

    @classmethod
    def of(cls, java: str, jars: Path, cache: Path | None = None) -> ClassArchive | None:
        """Return that of the JVM that `java` starts with the jars in the folder `jars`; None if Java cannot write one."""
        base = Path(java).resolve().parent.parent / "lib" / "server" / "classes.jsa"
        if not base.is_file():  # no HotSpot, or one without the archive of its own classes, on which this one is built
            return None
        identity = hashlib.sha256(repr([_state(base), *map(_state, sorted(jars.glob("*.jar")))]).encode()).hexdigest()[:16]
        return cls((cache_folder() if cache is None else cache) / f"spark-classes-{identity}.jsa")

    @property
    def is_written(self) -> bool:
        return self.path.is_file()

    @property
    def written_path(self) -> Path:
        """The file that the JVM of this process writes: two runs may end at the same time, or one be killed."""
        return self.path.with_suffix(f".{os.getpid()}")

    def jvm_options(self) -> tuple[str, ...]:
        """Return options that use it, or write it when the JVM ends."""
        if self.is_written:
            return ("-Xlog:disable", "-Xlog:all=warning:stderr", f"-XX:SharedArchiveFile={self.path}")
        # Java warns of every class that cannot be archived, such as generated ones.
        return ("-Xlog:disable", "-Xlog:all=error:stderr", f"-XX:ArchiveClassesAtExit={self.written_path}")

    def prepare(self) -> None:
        """Make the folder that the JVM writes it to, without leftovers of killed runs. Raises OSError."""
        if self.is_written:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(self.path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path.parent))
        for left in self.path.parent.glob(f"{self.path.stem}.*"):
            if time.time() - left.stat().st_mtime > _LEFT_AFTER_S:
                left.unlink(missing_ok=True)

    def keep_at_exit(self, gateway: Any, log_file: Path, *, waits: bool) -> None:
        """At the end of this process, let the JVM of `gateway` write the archive, and put that into its place.

        `waits`: this process stays until then, else it ends, and another one stays, whose messages are in `log_file`.
        """
        if waits or _is_main_process_of_unit():
            atexit.register(self.end_and_keep, gateway.proc)
        else:
            atexit.register(self.hand_over, gateway, log_file)

    def hand_over(self, gateway: Any, log_file: Path) -> None:
        """Start the process that ends the JVM of `gateway` and keeps the file that it writes. Returns at once."""
        with or_without(Economy.CLASS_ARCHIVE):
            jvm = gateway.proc
            if jvm.poll() is not None:
                return  # it was killed, or has run out of memory: the run said so
            # What reads the output of this process, such as a pipe of a shell, waits for all that can write to it.
            for stream in (gateway.jvm.java.lang.System.out, gateway.jvm.java.lang.System.err):
                stream.close()
            self._start_keeper(jvm, log_file)
            _log.info(
                "an archive of Spark's classes, with which later starts are faster, is written in background: %s", self.path
            )

    def _start_keeper(self, jvm: subprocess.Popen[bytes], log_file: Path) -> None:
        assert jvm.stdin is not None
        keeper = Path(__file__).with_name("archive_keeper.py")
        command = [sys.executable, "-I", str(keeper), str(jvm.pid), str(self.written_path), str(self.path), str(_KEPT_WITHIN_S)]
        os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, jvm.stdin.fileno(), 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_file), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,  # an interrupt of the terminal is for the run
        )
        jvm.stdin.close()  # the keeper has its own

    def end_and_keep(self, jvm: subprocess.Popen[bytes]) -> None:
        with or_without(Economy.CLASS_ARCHIVE):
            self._end_and_keep(jvm)

    def _end_and_keep(self, jvm: subprocess.Popen[bytes]) -> None:
        _log.info("writing an archive of Spark's classes, with which later starts are faster: %s", self.path)
        if jvm.stdin is not None:
            jvm.stdin.close()  # Spark's JVM ends with its standard input
        try:
            jvm.wait(_WRITTEN_WITHIN_S)
        except subprocess.TimeoutExpired:
            _log.warning("Spark's JVM has not ended within %.0f s: there is no archive of its classes", _WRITTEN_WITHIN_S)
            return
        if self.written_path.is_file():
            self.written_path.replace(self.path)
        else:
            _log.warning("Java has written no archive of Spark's classes: the next start takes as long as this one")


def _is_main_process_of_unit() -> bool:
    """Return whether systemd started this process: at its end it kills the other processes of the unit (`KillMode`)."""
    return os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def jvm_options_text(options: Iterable[str]) -> str:
    """Return options as `spark.driver.extraJavaOptions` takes them: in quotes, for paths may contain spaces."""
    return " ".join(f'"{option}"' for option in options)


def _state(file: Path) -> tuple[str, int, int]:
    """Return properties of the file that its copies keep: container images have times of whole seconds, as Java compares."""
    status = file.stat()
    return file.name, status.st_size, int(status.st_mtime)
