"""Schemas that follow the source while the mirror runs: what is logged, registered, refused, and what a failure does."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.registry_server import RegistryFault, RegistryServer
from tests.schemas.registry_pair import Pair, fill

from shallow_mirror.access import AccessPass
from shallow_mirror.checkpoints.logs import SchemaImports
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.schemas import schema_sync
from shallow_mirror.schemas.sync import ABANDONED_AFTER_MS, SchemaPasses

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
NO_PROCESS = 1 << 30
"""Above the largest process id."""


@pytest.fixture(autouse=True)
def _shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with RegistryServer() as source, RegistryServer() as target:
        yield Pair(source, target, tmp_path)


def passes(pair: Pair, **schemas: Any) -> SchemaPasses:
    return SchemaPasses(pair.config(**schemas), lambda _registry: pair.history())


@pytest.mark.slow
def test_differences_are_logged_before_they_are_registered_with_equal_ids(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    fill(pair.source.rules)
    following = passes(pair)
    assert following.run_pass(NOW) == AccessPass(at_ms=NOW_MS, created=4)
    assert pair.target.rules.versions == pair.source.rules.versions
    name = f"schema registry of west at {pair.target.url}"
    assert caplog.messages[0] == f"schemas: {name} lacks: money version 1 (id 2)"
    assert f"schemas: {name} has no compatibility level for orders-value, the source NONE" in caplog.messages
    assert caplog.messages[-1] == "schemas: 4 versions registered"

    before = pair.target.changes()
    assert following.run_pass(NOW) == AccessPass(at_ms=NOW_MS)
    assert pair.target.changes() == before, "a pass without differences changes nothing"
    pair.source.rules.register("orders-value-2", {"schema": '"long"'})
    assert following.run_pass(NOW).created == 1
    assert pair.target.rules.versions == pair.source.rules.versions


def test_report_only_logs_each_difference_once_and_registers_nothing(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    fill(pair.source.rules)
    following = passes(pair, report_only=True)
    assert [following.run_pass(NOW).lacking for _ in range(2)] == [5, 5]
    assert pair.target.changes() == []
    assert len([line for line in caplog.messages if "lacks: money version 1" in line]) == 1


def test_with_a_conflict_nothing_is_written_and_the_pass_has_a_problem(pair: Pair) -> None:
    fill(pair.source.rules)
    for schema in ('"bytes"', '"float"', '"double"'):
        pair.target.rules.register("theirs", {"schema": schema})
    done = passes(pair).run_pass(NOW)
    assert pair.target.changes() == []
    assert (done.created, done.not_copied) == (0, 2)
    assert done.problem is not None
    assert "2 conflicts, nothing is written: money version 1: the target has another schema with id 2; " in done.problem


def test_a_registry_that_gives_other_ids_or_only_reads_is_refused(pair: Pair) -> None:
    fill(pair.source.rules)
    pair.target.rules.modes[""] = "READONLY"
    with pytest.raises(ConfigError, match="is in mode READONLY for what has to change"):
        passes(pair).run_pass(NOW)
    assert pair.target.rules.versions == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "pid", "age_ms", "is_abandoned"),
    [
        (socket.gethostname(), None, 0, True),  # of an earlier process of the same id: this thread has none under way
        (socket.gethostname(), NO_PROCESS, 0, True),
        (socket.gethostname(), os.getppid(), ABANDONED_AFTER_MS + 1, False),
        ("other", 7, 0, False),
        ("other", 7, ABANDONED_AFTER_MS + 1, True),
    ],
)
def test_only_an_import_whose_run_is_gone_is_taken_over(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    host: str,
    pid: int | None,
    age_ms: int,
    is_abandoned: bool,
) -> None:
    """`pid` None: of this process, which another one may have had before."""
    fill(pair.source.rules)
    recorded = os.getpid() if pid is None else pid
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: host)
        elsewhere.setattr(os, "getpid", lambda: recorded)
        rows = pair.history()
        rows._now_ms = lambda: NOW_MS - age_ms
        rows.begin({"money": None})
    pair.target.rules.modes["money"] = "IMPORT"
    done = passes(pair).run_pass(NOW)
    if is_abandoned:
        assert done == AccessPass(at_ms=NOW_MS, created=4)
        assert pair.target.rules.modes == {"": "READWRITE"}
    else:
        assert (
            done.problem == f"waits for the end of a run of `schemas --apply` ({host}, process {pid}), which registers versions"
        )
        assert pair.target.changes() == []
        assert not [line for line in caplog.messages if "left in mode IMPORT" in line]


def test_a_failed_pass_is_reported_as_a_problem_and_retried(pair: Pair) -> None:
    fill(pair.source.rules)
    pair.target.faults.append(RegistryFault("GET", "/", 401, times=1))
    problems: list[tuple[Problem, int]] = []
    passed: list[AccessPass] = []
    is_done = threading.Event()

    def on_pass(done: AccessPass) -> None:
        passed.append(done)
        if done.created:
            is_done.set()

    config = pair.config(sync="1 second")
    storage = TableStorage(config.table_location)
    with schema_sync(config, 0.01, storage, report=lambda problem, level: problems.append((problem, level)), on_pass=on_pass):
        assert is_done.wait(30)
    assert [done.is_compared for done in passed[:2]] == [False, True]
    ((problem, level),) = problems
    assert (problem.kind, level) == (ProblemKind.SCHEMA, logging.WARNING)
    assert problem.text.startswith("schemas: not compared: ConfigError: schema registry of west")
    assert "rejects the credentials (401)" in problem.text
    assert SchemaImports.open(storage, pair.target.url).unfinished() == []
    assert pair.target.rules.versions == pair.source.rules.versions


def test_following_needs_both_registries(pair: Pair) -> None:
    document = {**pair.document(), "schemas": {"sync": "1 minute"}}
    with pytest.raises(ConfigError, match=r"schemas\.sync: needs schemas\.source\.url and schemas\.target\.url"):
        MirrorConfig.from_document(document, folder=pair.folder)
