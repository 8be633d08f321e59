"""Calls of hooks: real processes and a real HTTP server, which fail, hang, print too much or go away."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.config.hook_settings import HookCall, MigrationHook
from shallow_mirror.migration.hooks import hook_call
from shallow_mirror.migration.hooks.hook_call import SHOWN_BYTES, CallFailedError, call_hook, unready
from shallow_mirror.migration.steps import Step

DOCUMENT = {"id": "m/all/move/1.0/close/do", "topics": ["orders"]}


def python(program: str, *arguments: str, timeout: str = "1 minute") -> HookCall:
    return HookCall(command=[sys.executable, "-c", program, *arguments], timeout=timeout)


def test_a_command_reads_the_document_on_its_standard_input_and_needs_no_shell(tmp_path: Path) -> None:
    read = tmp_path / "a b; c"
    call_hook(python("import sys; open(sys.argv[1], 'w').write(sys.stdin.read())", str(read)), DOCUMENT)
    assert json.loads(read.read_text(encoding="utf-8")) == DOCUMENT


def test_a_command_that_reads_nothing_is_not_waited_for_however_long_the_document_is() -> None:
    call_hook(python("pass"), {"topics": ["t" * 249] * 10_000})


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (python("import sys; print('no such gateway'); sys.exit(3)"), "exit code 3: no such gateway"),
        (python("import sys; sys.exit(4)"), "exit code 4"),
        (python("import os; os.kill(os.getpid(), 9)"), "was killed by SIGKILL"),
        (HookCall(command=["/nowhere/switch"]), "cannot start /nowhere/switch: No such file or directory"),
        (HookCall(command=["/"]), "cannot start /: Permission denied"),
    ],
)
def test_a_command_that_fails_is_reported_with_what_it_printed(call: HookCall, reason: str) -> None:
    with pytest.raises(CallFailedError) as failed:
        call_hook(call, DOCUMENT)
    assert str(failed.value) == reason


def test_of_what_a_command_prints_the_end_is_kept_in_one_line_without_control_characters() -> None:
    program = "import sys; sys.stdout.write('x' * 10_000_000 + '\\n\\x1b[31mlast\\n line'); sys.exit(1)"
    with pytest.raises(CallFailedError) as failed:
        call_hook(python(program), DOCUMENT)
    assert str(failed.value).endswith("x [31mlast line")
    assert len(str(failed.value)) < SHOWN_BYTES + 20


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with suppress(FileNotFoundError):  # it has just ended, or this machine has no /proc
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return not Path("/proc").is_dir()


FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    print('switching', flush=True)
    with open(sys.argv[1] + '.new', 'w') as file:
        file.write(f'{os.getpid()} {child}')
    os.rename(sys.argv[1] + '.new', sys.argv[1])
time.sleep(600)
"""


@pytest.mark.slow
def test_a_command_that_hangs_is_killed_with_all_that_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pids"
    clock = SimpleNamespace(monotonic=lambda: 61.0 if file.exists() else 0.0, sleep=time.sleep)
    monkeypatch.setattr(hook_call, "time", clock)
    monkeypatch.setattr(hook_call, "STOP_S", 0.2)
    with pytest.raises(CallFailedError, match=r"^did not end within 60 s and was killed: switching$"):
        call_hook(python(FAMILY, str(file)), DOCUMENT)
    give_up_at_s = time.monotonic() + 10
    pids = [int(pid) for pid in file.read_text(encoding="utf-8").split()]
    while any(map(is_alive, pids)):
        assert time.monotonic() < give_up_at_s
        time.sleep(0.01)


@pytest.mark.slow
def test_an_interrupt_ends_the_command_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_call, "STOP_S", 0.2)
    pids = tmp_path / "pids"

    def read(_output: Any, wait_s: float) -> None:
        time.sleep(wait_s)
        if wait_s and pids.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(hook_call._Output, "read", read)
    with pytest.raises(KeyboardInterrupt):
        call_hook(python(FAMILY, str(pids)), DOCUMENT)
    give_up_at_s = time.monotonic() + 10
    while any(is_alive(int(pid)) for pid in pids.read_text(encoding="utf-8").split()):
        assert time.monotonic() < give_up_at_s
        time.sleep(0.01)


def test_a_process_that_a_command_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "child = os.fork()\n"
        "if child:\n    open(sys.argv[1], 'w').write(str(child))\nelse:\n    time.sleep(600)"
    )
    call_hook(python(program, str(tmp_path / "pid")), DOCUMENT)
    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    assert is_alive(pid)
    os.kill(pid, 9)


class Gateway(ThreadingHTTPServer):
    """`status` and `body` of its answers. `silence`: it answers once this is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body = 204, b""
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.silence = threading.Event()
        self.silence.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/switch?token=hidden"


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers), body))
        self.server.silence.wait(30)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        with suppress(OSError):  # the client may have given up
            self.end_headers()
            self.wfile.write(self.server.body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.silence.set()
        server.shutdown()
        thread.join()


def post(gateway: Gateway, timeout: str = "20 seconds", **headers: str) -> HookCall:
    return HookCall(url=gateway.url, headers=headers, timeout=timeout)


def test_a_post_sends_the_document_and_headers_whose_secrets_are_references(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_TOKEN", "s3cret")
    call_hook(post(gateway, Authorization="Bearer ${env:GATEWAY_TOKEN}"), DOCUMENT)
    ((path, headers, body),) = gateway.requests
    assert path == "/switch?token=hidden"
    assert (headers["Authorization"], headers["Content-Type"]) == ("Bearer s3cret", "application/json")
    assert json.loads(body) == DOCUMENT


def test_an_answer_that_is_not_2xx_is_a_failure_which_shows_no_secret(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_TOKEN", "s3cret")
    gateway.status, gateway.body = 503, b"not ready\nBearer s3cret" + b"." * 10_000
    with pytest.raises(CallFailedError) as failed:
        call_hook(post(gateway, Authorization="Bearer ${env:GATEWAY_TOKEN}"), DOCUMENT)
    assert str(failed.value).startswith("HTTP status 503: not ready ***...")
    assert len(str(failed.value)) < SHOWN_BYTES + 50
    gateway.status, gateway.body = 307, b""
    with pytest.raises(CallFailedError, match=r"^HTTP status 307$"):
        call_hook(post(gateway), DOCUMENT)


@pytest.mark.slow
def test_a_gateway_that_does_not_answer_is_given_up(gateway: Gateway) -> None:
    gateway.silence.clear()
    with pytest.raises(CallFailedError, match=r"^did not answer within 0\.2 s$"):
        call_hook(post(gateway, timeout="200 ms"), DOCUMENT)


def test_a_gateway_that_went_away_is_named_as_unreachable(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(CallFailedError, match=r"^cannot reach it: .*Connection refused$"):
        call_hook(HookCall(url=f"http://127.0.0.1:{port}/"), DOCUMENT)


def test_what_can_be_seen_without_a_call_is_said_before_anything_is_done(tmp_path: Path) -> None:
    unexecutable = tmp_path / "switch"
    unexecutable.write_text("", encoding="utf-8")
    hooks = [
        MigrationHook(name="fine", before=Step.CHECK, command=[sys.executable]),
        MigrationHook(name="typo", before=Step.CHECK, command=["switsch-gateway"], undo=HookCall(command=[str(unexecutable)])),
        MigrationHook(name="post", before=Step.CHECK, url="http://g/", headers={"Authorization": "${env:NOT_SET_HERE}"}),
    ]
    assert list(unready(hooks)) == [
        "hooks: typo: command: switsch-gateway is not found, or is not executable",
        f"hooks: typo: undo: command: {unexecutable} is not found, or is not executable",
        "hooks: post: headers: Authorization: environment variable NOT_SET_HERE is not set",
    ]
