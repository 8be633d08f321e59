"""Driver: one call of a hook: a command with JSON on its standard input, or a POST of it. Each ends within its timeout."""

from __future__ import annotations

import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from shallow_mirror.broker.auth import secrets
from shallow_mirror.config.hook_settings import Hook, HookCall
from shallow_mirror.errors import ConfigError

SHOWN_BYTES = 2_000
"""So much of the end of what a hook has printed, or of the beginning of a response, is kept and shown."""
STOP_S = 5.0
"""After SIGTERM, before SIGKILL."""
_POLL_S = 0.05
_HIDDEN = "***"


class CallFailedError(Exception):
    """Internal: why a call failed. It may have had an effect."""


Call = Callable[[HookCall, Mapping[str, Any]], None]
"""Make a call with a JSON document. Raises CallFailedError."""


def call_hook(call: HookCall, document: Mapping[str, Any]) -> None:
    """Make a call. Raises CallFailedError."""
    body = json.dumps(document).encode()
    if call.url is None:
        _run(call.command, body, call.timeout_s)
    else:
        headers = _resolved(call.headers)
        hidden = [headers[name] for name, value in call.headers.items() if secrets.references_in(value)]
        _post(call.url, headers, hidden, body, call.timeout_s)


def unready(hooks: Sequence[Hook]) -> Iterator[str]:
    """Yield why hooks could not be called, as far as that can be seen without calling them."""
    for hook in hooks:
        undo = getattr(hook, "undo", None)
        for what, call in (("", hook), ("undo: ", undo)):
            if call is None:
                continue
            where = f"hooks: {hook.name}: {what}"
            if call.command and shutil.which(call.command[0]) is None:
                yield f"{where}command: {call.command[0]} is not found, or is not executable"
            try:
                _resolved(call.headers)
            except CallFailedError as error:
                yield f"{where}{error}"


def _run(command: Sequence[str], body: bytes, timeout_s: float) -> None:
    give_up_at_s = time.monotonic() + timeout_s
    # A file, not a pipe: a program that does not read its input cannot block us.
    with tempfile.TemporaryFile() as document:
        document.write(body)
        document.seek(0)
        try:
            process = subprocess.Popen(
                command,
                stdin=document,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C of the conductor's terminal does not reach it; and its group can be ended
            )
        except OSError as error:
            raise CallFailedError(f"cannot start {command[0]}: {error.strerror}") from error
    assert process.stdout is not None
    with process.stdout:
        output = _Output(process.stdout.fileno())
        try:
            while process.poll() is None and time.monotonic() < give_up_at_s:
                output.read(_POLL_S)
        finally:  # also on Ctrl-C
            is_late = process.poll() is None
            if is_late:
                _end(process)
            output.read(0)  # what it printed last; processes that it has left running may hold the pipe
    if is_late:
        raise CallFailedError(f"did not end within {timeout_s:g} s and was killed{output}")
    if process.returncode < 0:
        raise CallFailedError(f"was killed by {signal.Signals(-process.returncode).name}{output}")
    if process.returncode:
        raise CallFailedError(f"exit code {process.returncode}{output}")


class _Output:
    """Reads a pipe and keeps the end of it."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._poll = select.poll()  # unlike select(), for any number of open files
        self._poll.register(pipe, select.POLLIN)
        self._tail = b""
        self._is_open = True

    def read(self, wait_s: float) -> None:
        """Read what there is, or wait for it."""
        if not self._is_open:
            time.sleep(wait_s)
            return
        while self._poll.poll(wait_s * 1000):
            piece = os.read(self._pipe, 1 << 16)
            self._tail = (self._tail + piece)[-SHOWN_BYTES:]
            if not piece:
                self._is_open = False
                return
            if wait_s:
                return  # the caller looks at the clock

    def __str__(self) -> str:
        return _shown(self._tail)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and those that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
            break
    with suppress(ProcessLookupError):  # members of the group that ignored SIGTERM
        os.killpg(process.pid, signal.SIGKILL)


def _post(url: str, headers: Mapping[str, str], hidden: Sequence[str], body: bytes, timeout_s: float) -> None:
    """Raise CallFailedError, without values that are `hidden`, unless the answer is 2xx.

    Redirects are not followed: headers may hold secrets.
    """
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=timeout_s)
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    ended: list[tuple[int, bytes] | Exception] = []

    def exchange() -> None:
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            ended.append((response.status, response.read(SHOWN_BYTES)))
        except (OSError, ValueError, http.client.HTTPException) as error:
            ended.append(error)

    # The timeout of a socket begins again with every byte: only a thread can be given up at a time.
    thread = threading.Thread(target=exchange, name="hook", daemon=True)
    thread.start()
    thread.join(timeout_s)
    try:
        result = ended[0] if ended else TimeoutError()
        if isinstance(result, TimeoutError):
            raise CallFailedError(f"did not answer within {timeout_s:g} s")
        if isinstance(result, Exception):
            raise CallFailedError(f"cannot reach it: {str(result) or type(result).__name__}")
    finally:
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread
        connection.close()
    status, content = result
    if not 200 <= status < 300:
        raise CallFailedError(f"HTTP status {status}{_shown(_without(content, hidden))}")


def _resolved(headers: Mapping[str, str]) -> dict[str, str]:
    resolved = {}
    for name, value in headers.items():
        try:
            resolved[name] = secrets.resolve(value)
        except ConfigError as error:
            raise CallFailedError(f"headers: {name}: {error}") from None
        if not resolved[name].isprintable():
            raise CallFailedError(f"headers: {name}: its value holds a line break or another control character")
    return resolved


def _without(content: bytes, values: Sequence[str]) -> bytes:
    """Return the content without values of headers, which a server may send back: whole, or without "Bearer"."""
    for value in values:
        for word in dict.fromkeys((value, value.rpartition(" ")[2])):
            content = content.replace(word.encode(), _HIDDEN.encode()) if word else content
    return content


def _shown(content: bytes) -> str:
    """Return what was printed in one line, behind a colon; empty if it was nothing."""
    text = " ".join("".join(c if c.isprintable() else " " for c in content.decode(errors="replace")).split())
    return f": {text}" if text else ""
