"""Driver: the log of a table in a folder of this machine: its commits survive a power failure, and it is kept short.

Neither deltalake nor Spark syncs what it wrote to the disk. So the files of a commit are synced before it is
reported, and nothing is acknowledged that a power failure could take back. What it left half-written was never acknowledged: the
next take-over sets it aside. A process that is killed leaves no such thing: commits appear under their name complete.

Whoever looks for a commit lists the log, several times a decision. Object stores can list from a name on; a folder is listed
whole: 4,200 commits make a decision take almost three times as long.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from shallow_mirror.checkpoints.tables.table_protocol import damaged_table
from shallow_mirror.errors import OffsetMapConflictError, OutcomeUnknownError

_log = logging.getLogger(__name__)

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint.*\.parquet")
_WHOLE_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
"""Others are parts, or name files of their own."""
_OF_A_VERSION = re.compile(r"\.?(\d{20})\.")
"""Also checksums: Delta's, and hidden ones of Hadoop's file system."""
_LAST_CHECKPOINT = "_last_checkpoint"
_PARQUET_END = b"PAR1"
_WORDS = ("true", "false", "null", "-", ".", "e-", "e+", "E-", "E+")
"""What may be cut in a line of JSON that is no text: literals, and what a digit has to follow."""
_SETTLED_S = 10.0
"""A half-written file this old, by the clock of its file system, is no work in progress."""


_MAY_BE_OVER = (errno.EROFS, errno.ENOSPC, errno.EDQUOT)

_SHARED = ("/Volumes/", "/dbfs/")
"""Look like folders of this machine, and are object stores."""


def local_log(location: str) -> LocalLog | None:
    """Return the log of the Delta table at a path or URI; None if it is not on this machine."""
    path = location.removeprefix("file://") if location.startswith("file:///") else location.removeprefix("file:")
    return LocalLog(Path(path)) if path.startswith("/") and not path.startswith(_SHARED) else None


def require_writable(location: str) -> None:
    """Raise OSError, with the folder, if this user cannot make or write it; nothing if it is not on this machine.

    A folder that exists on a full or read-only file system passes: a write says so with its remedy, and it may be over by then.
    """
    log = local_log(location)
    if log is None:
        return
    folder = existing = log.table
    try:
        while not _is_there(existing):
            existing = existing.parent
        with tempfile.TemporaryDirectory(dir=existing, prefix="_access-"):
            """Made, and deleted again: `os.access` knows neither the rules of /proc nor those of a network file system."""
    except OSError as error:
        if existing == folder and error.errno in _MAY_BE_OVER:
            return
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class LocalLog:
    """The log of the Delta table in a folder."""

    def __init__(self, table: Path) -> None:
        self.table, self._log = table, table / "_delta_log"

    @property
    def is_here(self) -> bool:
        return self._log.is_dir()

    def require_listable(self) -> None:
        """Raise PermissionError if this user may not list the log, if there is one."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.scandir(self._log).close()

    def sync(self, above: int) -> None:
        """Return when the commits above this version of the table are on the disk, with all files they name.

        Raises OutcomeUnknownError when the disk refuses: they are there, but a power failure may take them.
        """
        try:
            version = above + 1
            while (commit := self._log / f"{version:020}.json").exists():
                added = [file for file, _ in self._added_by(commit)]
                for file in (*added, commit, self._log / f"{version:020}.checkpoint.parquet"):
                    _sync(file)
                version += 1
            for path in (self._log / _LAST_CHECKPOINT, self._log, self.table, self.table.parent):
                _sync(path)
        except OSError as error:
            raise OutcomeUnknownError(f"{self.table}: the disk does not confirm the last commit: {error}") from error

    def discard_torn_commit(self) -> None:
        """Rename the newest commit, or the newest checkpoint, if it is half-written, so that the log ends before it.

        Raises OutcomeUnknownError while it is so young that its writer may still be writing it, and OffsetMapConflictError if it
        holds what no power failure leaves, or if without it a table that had rows would be taken for a new one.
        """
        if not self._log.is_dir():
            return
        with _locked(self._log):
            commits = {int(match[1]): name for name in os.listdir(self._log) if (match := _COMMIT.fullmatch(name))}
            if commits and self._is_torn(self._log / commits[max(commits)]):
                self._require_older_state(self._log / commits[max(commits)], max(commits))
                self._rename_torn(f"{max(commits):020}.")
                del commits[max(commits)]
            checkpoints = [name for name in os.listdir(self._log) if _CHECKPOINT.fullmatch(name)]
            if checkpoints and not _is_whole_parquet(self._log / max(checkpoints)):
                self._rename_torn(max(checkpoints))
                self._rename_torn(_LAST_CHECKPOINT)
            last = self._log / _LAST_CHECKPOINT
            if last.exists() and _actions(last) is None:
                self._rename_torn(_LAST_CHECKPOINT)
        if commits:
            self.sync(above=max(commits) - 1)

    def _require_older_state(self, torn: Path, version: int) -> None:
        """Raise OffsetMapConflictError unless the log says what the table was before the torn commit, or it had no rows yet."""
        names = (name for name in os.listdir(self._log) if _COMMIT.fullmatch(name) or _WHOLE_CHECKPOINT.fullmatch(name))
        if any(int(name[:20]) < version for name in names):
            return
        self._require_settled(torn)
        is_empty = not torn.read_bytes().strip(b"\0")
        if version or not is_empty or any(self.table.glob("*.parquet")):
            raise damaged_table(
                str(self.table), f"{torn.name}, the only commit of its log, or a file that it names is half-written"
            )

    def shorten(self, kept_commits: int) -> None:
        """Delete files that the newest `kept_commits` versions of the table do not need: commits and checkpoints below the newest
        whole checkpoint that is older than those. Oldest first, so that a crash leaves no hole. Raises OSError.
        """
        files = sorted((int(match[1]), name) for name in os.listdir(self._log) if (match := _OF_A_VERSION.match(name)))
        newest = max((version for version, name in files if _COMMIT.fullmatch(name)), default=0)
        whole = (
            version
            for version, name in reversed(files)
            if version <= newest - kept_commits and _WHOLE_CHECKPOINT.fullmatch(name) and _is_whole_parquet(self._log / name)
        )
        first_needed = next(whole, 0)
        for version, name in files:
            if version < first_needed:
                (self._log / name).unlink(missing_ok=True)

    def _is_torn(self, commit: Path) -> bool:
        """Return whether the commit is half-written, or a file that it names. Raises OffsetMapConflictError if it is damaged."""
        content = commit.read_bytes()
        if _actions(commit) and not content.endswith(b"\0"):
            return not all(_is_whole_parquet(file, size) for file, size in self._added_by(commit))
        if not _is_cut(content):
            raise damaged_table(str(self.table), f"the commit {commit.name} of its log holds what no power failure leaves")
        return True

    def _added_by(self, commit: Path) -> list[tuple[Path, int]]:
        """Return data files and their sizes. Raises OffsetMapConflictError if a whole commit does not say them."""
        added = [action["add"] for action in _actions(commit) or () if "add" in action]
        try:
            return [(self.table / unquote(file["path"]), int(file["size"])) for file in added]
        except (KeyError, TypeError, ValueError) as error:
            raise OffsetMapConflictError(f"{commit} is no commit of a Delta table: a file lacks its path or size") from error

    def _rename_torn(self, beginning: str) -> None:
        """Rename every file of that number, also checksums and hidden ones, so that the next commit can take it."""
        files = [file for file in self._log.iterdir() if file.name.lstrip(".").startswith(beginning) and file.suffix != ".torn"]
        for file in files:
            self._require_settled(file)
        for file in files:
            file.rename(file.with_name(f"{file.name}.torn"))
            _log.warning("%s was half-written when the power failed, and never acknowledged: set aside as .torn", file)

    def _require_settled(self, file: Path) -> None:
        if self._age_s(file) < _SETTLED_S:
            raise OutcomeUnknownError(f"{file} is half-written and new: waiting for its writer to complete it")

    def _age_s(self, file: Path) -> float:
        """Return the age by the clock that stamps files there, which need not be ours."""
        with tempfile.NamedTemporaryFile(dir=self.table, prefix="_clock-") as now:
            return os.stat(now.name).st_mtime - file.stat().st_mtime


def _actions(commit: Path) -> list[dict[str, Any]] | None:
    """Return the actions of a commit; None when a line is not a JSON object."""
    try:
        lines = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines() if line.strip("\0 ")]
    except (ValueError, RecursionError):
        return None
    return lines if all(isinstance(line, dict) for line in lines) else None


def _is_cut(content: bytes) -> bool:
    """Return whether the content is the beginning of lines that are JSON objects, behind which nothing but zeros was written."""
    *lines, last = content.rstrip(b"\0").split(b"\n")
    try:
        if not all(isinstance(json.loads(line), dict) for line in lines):
            return False
        cut_line = codecs.getincrementaldecoder("utf-8")().decode(last)  # without the bytes of a character that was cut
    except (ValueError, RecursionError):
        return False
    try:
        return not cut_line or isinstance(json.loads(cut_line), dict)
    except json.JSONDecodeError as error:
        return cut_line.startswith("{") and _ends_too_early(error)
    except RecursionError:
        return False


def _ends_too_early(error: json.JSONDecodeError) -> bool:
    """Return whether it is the end of the text that is no JSON: within a string, a literal or a number, or between them."""
    rest = error.doc[error.pos :]
    is_in_escape = error.msg.startswith("Invalid \\u") and len(rest) <= len("\\uXXX")
    return error.msg.startswith("Unterminated string") or is_in_escape or any(word.startswith(rest) for word in _WORDS)


def _is_whole_parquet(file: Path, size: int | None = None) -> bool:
    try:
        with file.open("rb") as opened:
            length = opened.seek(0, os.SEEK_END)
            if length < len(_PARQUET_END) or (size is not None and length != size):
                return False
            opened.seek(-len(_PARQUET_END), os.SEEK_END)
            return opened.read() == _PARQUET_END
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise OffsetMapConflictError(f"{file}, which the log names, cannot be read: {error}") from error


def _sync(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock out other processes of this machine: a file that one has set aside and rewritten another must not set aside again."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
