"""Clients keep the address of a gateway while hooks stop them, switch the gateway and start them; and one runs on."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.migration.application import Application
from tests.migration.gateway.kroxylicious import Gateway
from tests.migration.migrations import scene
from tests.migration.test_drill import Silent
from tests.support import mirror_runs as runs
from tests.support.console_entry import console

from shallow_mirror.migration import Options, Phase, abort, roll_back, run_migration
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.hooks import hook_runner
from shallow_mirror.migration.steps import Step

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(400)]

PARTITIONS = 3
POST = """
import sys, urllib.request
urllib.request.urlopen(urllib.request.Request(sys.argv[1], sys.stdin.buffer.read()), timeout=60).close()
"""


class Operations(ThreadingHTTPServer):
    """What an operator has written for hooks: `/stop` and `/start` of clients and gateway. `failing`: 503 so many times."""

    daemon_threads = True

    def __init__(self, actions: dict[str, Callable[[dict[str, Any]], None]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.actions = actions
        self.calls: list[tuple[str, str]] = []
        self.failing: Counter[str] = Counter()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Operations

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.path, document["id"]))
        status = 204
        if self.server.failing[self.path]:
            self.server.failing[self.path] -= 1
            status = 503
        else:
            self.server.actions[self.path](document)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving(server: Operations) -> Iterator[Operations]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class RunningOn:
    """A producer without idempotence that nobody stops."""

    def __init__(self, topic: str, bootstrap: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": False, "acks": "all", "log_level": 0})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[str] = []
        self.failed: list[str] = []

    def __enter__(self) -> RunningOn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            number += 1
            value = f"on-{number}"
            into = self.acknowledged, self.failed
            self._producer.produce(
                self._topic, value, on_delivery=lambda error, _, value=value, into=into: into[error is not None].append(value)
            )
            self._producer.poll(0)


class Said(Silent):
    def __init__(self) -> None:
        super().__init__({})
        self.lines: list[str] = []

    def waits(self, outside: Outside) -> None:
        self.lines.append(f"{outside.step}: {outside.request}: {outside.seen}")

    def says(self, sentence: str) -> None:
        self.lines.append(sentence)


def test_clients_keep_their_bootstrap_address_while_the_move_and_its_rollback_happen(
    two_clusters: Any, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_runner, "RETRY_S", 0.2)
    addresses = {"east": two_clusters.source.bootstrap, "west": two_clusters.target.bootstrap}
    topic, other = topic_name, f"{topic_name}-other"
    groups = [f"{topic}.{number}" for number in range(3)]
    for name in (topic, other):
        runs.create_topic(addresses["east"], name, PARTITIONS)
    gateway, application = Gateway(tmp_path / "gateway"), Application(topic, PARTITIONS, groups)

    def stop(_: dict[str, Any]) -> None:
        application.stop_writers()
        application.stop_groups()
        gateway.close()

    def start(document: dict[str, Any]) -> None:
        gateway.open(addresses[document["to"]])
        application.start(gateway.address)
        application.await_writes()

    def back(document: dict[str, Any]) -> None:
        start({"to": document["from"]})

    with serving(Operations({"/stop": stop, "/start": start, "/back": back})) as operations:
        post = [sys.executable, "-c", POST]
        hooks = [
            {
                "name": "stop",
                "before": "stop writers",
                "command": [*post, operations.url("/stop")],
                "undo": {"command": [*post, operations.url("/back")]},
            },
            {"name": "start", "after": "admit writers", "url": operations.url("/start")},
        ]
        gateway.open(addresses["east"])
        try:
            with (
                scene(tmp_path, two_clusters, [topic, other], groups, reverse={"start": "conductor"}, hooks=hooks) as made,
                application,
            ):
                application.start(gateway.address)
                made.start_forward()
                runs.wait_for("a record for each group", lambda: all(group.read for group in application.groups))
                application.stop_groups()  # commits offsets
                for group in application.groups:
                    group.start(gateway.address)
                with RunningOn(other, gateway.address) as running_on:
                    said, options = Said(), Options(launch=made.launch)
                    runs.wait_for("a record", lambda: running_on.acknowledged)

                    # In the downtime, and with an abort that lets everybody go on.
                    with pytest.raises(KeyboardInterrupt):
                        run_migration(made.files(), interrupted_at(Step.COMMIT_GROUPS), options)
                    abort(made.files(), said, options)
                    assert [path for path, _ in operations.calls] == ["/stop", "/back"]

                    shown = console("migrate", "plan", str(made.file))
                    assert "      hook start, after it: POST http://127.0.0.1" in "\n".join(shown.lines), shown

                    operations.failing["/start"] = 2
                    assert run_migration(made.files(), said, options).waves["all"].phase is Phase.MOVED
                    (waited,) = [line for line in said.lines if "make hook start succeed" in line]
                    assert "--skip-hook start" in waited
                    assert waited.endswith(": HTTP status 503")
                    written_before = len(running_on.acknowledged)
                    runs.wait_for("records at the other cluster", lambda: len(running_on.acknowledged) > written_before + 20)
                    assert roll_back(made.files(), said, options=options).waves["all"].phase is Phase.RETURNED
                    runs.wait_for("groups", lambda: application.groups[0].read)
                application.stop_writers()
                application.await_everything_read()
        finally:
            gateway.close()
    paths = [path for path, _ in operations.calls]
    assert paths == ["/stop", "/back", "/stop", "/start", "/start", "/start", "/stop", "/start"]
    ids = [call for path, call in operations.calls if path == "/start"]
    assert ids == ["drill/all/move/2.0/start/do"] * 3 + ["drill/all/rollback/3.0/start/do"]
    assert application.differences() == {}
    assert running_on.failed == []
    there = Counter(value for partition in range(PARTITIONS) for value in runs.read_values(addresses["east"], other, partition))
    assert Counter(running_on.acknowledged) - there == Counter()


def interrupted_at(last: Step) -> Silent:
    """Return reports of a conductor that is interrupted where a step begins."""

    class Interrupted(Silent):
        def begun(self, wave: str, step: Step) -> None:
            if step is last:
                raise KeyboardInterrupt

    return Interrupted({})
