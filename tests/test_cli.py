from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.support.console_entry import console
from tests.support.exit_codes import exit_code

from shallow_mirror import __version__
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.rows.paused_intervals import CONTROLS
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, FencedError, MirrorError, OutcomeUnknownError, RecoverNeededError
from shallow_mirror.operations import status
from shallow_mirror.operations.status import StatusReport
from shallow_mirror.streaming.watch import PartitionStatus
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

A = SourcePartition("orders", "idA", 0)

_CONF = """
mirror: m
source: {alias: east, client: {bootstrap.servers: "127.0.0.1:1"}}
target: {alias: west, client: {bootstrap.servers: "127.0.0.1:2"}}
topics: {include: ["orders"]}
tables: tables
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "mirror.yaml"
    path.write_text(_CONF, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _same_handlers_after() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_version_is_printed_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"shallow-mirror {__version__}\n"


def _put(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


class FakeMirror:
    """Ends with `error`, or runs until it is stopped by the signal it sends itself."""

    error: BaseException | None = None
    runs: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(self, path: Path) -> None:
        self.config, self.is_stopped = MirrorConfig.load(path), False

    @classmethod
    def from_file(cls, path: Path) -> FakeMirror:
        return cls(path)

    def stop(self) -> None:
        self.is_stopped = True

    def run(self, spark: Any, *, available_now: bool, for_seconds: float | None) -> None:
        self.runs.append({"available_now": available_now, "for_seconds": for_seconds})
        if self.error is not None:
            raise self.error
        os.kill(os.getpid(), signal.SIGTERM)
        assert self.is_stopped


def _put_mirror(monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None) -> type[FakeMirror]:
    fake = type("Fake", (FakeMirror,), {"error": error, "runs": []})
    _put(monkeypatch, "shallow_mirror.streaming.runs.mirror", Mirror=fake)
    return fake


def _put_map(monkeypatch: pytest.MonkeyPatch, **methods: Any) -> None:
    _put(
        monkeypatch,
        "shallow_mirror.checkpoints.ledger.offset_map",
        OffsetMap=SimpleNamespace(open=lambda tables, spark, *, mirror: SimpleNamespace(**methods)),
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("bad"), 2),
        (FencedError("run 7"), 3),
        (RecoverNeededError("choose"), 4),
        (OutcomeUnknownError("who knows"), 1),
        (MirrorError("other"), 1),
    ],
)
def test_exit_codes_say_who_must_act(
    conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: MirrorError, code: int
) -> None:
    _put_mirror(monkeypatch, error)
    assert exit_code("run", str(conf)) == code
    captured = capsys.readouterr()
    assert str(error) in captured.err
    assert captured.out == ""


def test_sigterm_ends_a_run_with_0(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _put_mirror(monkeypatch)
    assert exit_code("run", str(conf), "--available-now", "--for", "3") == 0
    assert fake.runs == [{"available_now": True, "for_seconds": 3.0}]


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["nonsense"], ["run", "x", "--nonsense"], ["run", "/nowhere/mirror.yaml"], ["translate", "c", "t", "x", "1"]],
)
def test_wrong_usage_is_2(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    _put_mirror(monkeypatch)
    assert exit_code(*arguments) == 2


def _translation(**changes: Any) -> Any:
    actual = {
        "kind": "data",
        "exact": True,
        "beyond": False,
        "target_topic": "orders",
        "target_partition": 0,
        "target_offset": 42,
    }
    return SimpleNamespace(**(actual | changes))


def test_translate_answers_in_json_with_exactly_the_documented_keys(
    conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def translate(*args: Any, **kwargs: Any) -> Any:
        asked.append((args, kwargs))
        return _translation()

    _put_map(monkeypatch, translate=translate)
    assert exit_code("translate", str(conf), "orders", "0", "41", "--json", "--as-of", "2026-01-01T00:00:00Z") == 0
    keys = [
        "topic",
        "partition",
        "offset",
        "kind",
        "exact",
        "beyond",
        "target_topic",
        "target_partition",
        "target_offset",
        "as_of",
    ]
    document = json.loads(capsys.readouterr().out)
    assert list(document) == keys
    assert document["target_offset"] == 42
    assert asked == [(("orders", 0, 41), {"as_of": datetime(2026, 1, 1, tzinfo=UTC), "topic_id": None})]


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (_translation(), "offset 42 (exact)"),
        (_translation(exact=False, kind="commit"), "next record; in a segment of kind commit"),
        (_translation(exact=False, beyond=True, kind=None), "(end of the map)"),
        (_translation(exact=False, beyond=True, kind="quarantined"), "(end of the map; in a segment of kind quarantined)"),
        (_translation(target_offset=None, kind=None, exact=False), "has no offset for it"),
    ],
)
def test_translate_says_in_words_what_the_answer_is(
    conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], actual: Any, words: str
) -> None:
    _put_map(monkeypatch, reverse=lambda *args, **kwargs: actual, knows=lambda *_, is_target: is_target)
    assert exit_code("translate", str(conf), "orders", "0", "41", "--reverse") == 0
    assert words in capsys.readouterr().out


def test_translate_of_a_partition_that_was_never_mirrored_is_wrong_usage(
    conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = _translation(target_offset=None, kind=None, exact=False)
    _put_map(monkeypatch, translate=lambda *args, **kwargs: nowhere, knows=lambda *_, is_target: is_target)
    assert exit_code("translate", str(conf), "ordres", "0", "41") == 2
    assert "source partition ordres-0 was never mirrored" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["yesterday", "2026-01-01T00:00:00"])
def test_a_time_without_zone_is_wrong_usage(conf: Path, monkeypatch: pytest.MonkeyPatch, time: str) -> None:
    _put_map(monkeypatch)
    assert exit_code("translate", str(conf), "orders", "0", "41", "--as-of", time) == 2


def _report(**changes: Any) -> StatusReport:
    partition = PartitionStatus(source=A, position=90, end=100, lag_offsets=10, lag_ms=700)
    defaults: dict[str, Any] = {"mirror": "m", "at_ms": 1, "run": None, "source_problem": None, "waiting_for": "brokers"}
    defaults |= {"waiting_since_ms": 0, "planned_at_ms": 1, "micro_batches": (), "partitions": (partition,)}
    return StatusReport(**(defaults | changes))


def test_status_is_one_json_document_or_tables(
    conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "gather_status", lambda config, spark: _report(mirror=config.mirror))
    assert exit_code("status", str(conf), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["partitions"] == [
        {"topic": "orders", "topic_id": "idA", "partition": 0, "position": 90, "end": 100, "lag_offsets": 10, "lag_ms": 700}
    ]
    assert (document["mirror"], document["waiting_for"], document["micro_batches"], document["run"]) == ("m", "brokers", [], None)
    assert exit_code("status", str(conf)) == 0
    table = capsys.readouterr().out
    assert "lag_ms" in table
    assert "the mirror waits since 1970-01-01T00:00:00+00:00 for: brokers" in table


@pytest.mark.parametrize("command", [["status"], ["status", "--watch"], ["translate", "orders", "0", "1"]])
def test_reading_before_the_mirror_ever_ran_is_2_and_says_what_to_do(
    conf: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert exit_code(command[0], str(conf), *command[1:]) == 2
    captured = capsys.readouterr()
    assert "there is no offset map" in captured.err
    assert "run the mirror once" in captured.err
    assert captured.out == ""


def _let_clusters_be_given_up_soon(conf: Path) -> None:
    conf.write_text(re.sub(r'"(127.0.0.1:\d)"', r'"\1", request.timeout.ms: 50', conf.read_text()))


def _make_map(conf: Path) -> None:
    """One of which a reading command finds 90 records of orders-0, shifted by 10."""
    run = RunIdentity(run_id="r", host="elsewhere", pid=7, started_at_ms=1_000)
    owner = LedgerOwner.take_over(
        MirrorConfig.load(conf).tables, name="m", source_cluster_id="S", target_cluster_id="T", run=run, now_ms=lambda: 1_000
    )
    owner.settle()
    owner.next_decision()
    data = Segment(
        source=A, source_start=0, source_end=90, kind=SegmentKind.DATA, target=TargetPartition("orders", "idT", 0),
        target_start=10, target_end=100, record_count=90, batch_count=1, max_timestamp_ms=5,
    )  # fmt: skip
    owner.decide([DecidedSegment(data, SlotTxn("m-0", 1, 1))], highest_slot=0)
    owner.settle()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "a_report"), [((), "mirror m, "), pytest.param(("--json",), '{"mirror": "m", ', marks=pytest.mark.thorough)]
)
def test_status_watch_reports_again_and_again_and_ends_with_0_on_ctrl_c(
    conf: Path, options: tuple[str, ...], a_report: str
) -> None:
    _let_clusters_be_given_up_soon(conf)
    _make_map(conf)
    command = [sys.executable, "-m", "shallow_mirror.cli", "status", str(conf), "--watch", "--interval", "0.1", *options]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert watching.stdout is not None
        reports = 0
        for line in watching.stdout:
            reports += line.startswith(a_report)
            if reports == 3:
                break
        watching.send_signal(signal.SIGINT)
        _, output = watching.communicate(timeout=60)
    finally:
        watching.kill()
        watching.wait()
    assert (reports, watching.returncode, output) == (3, 0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "document"),
    [
        (["translate", "CONF", "orders", "0", "41", "--as-of", "2026-01-01T00:00:00Z"], "offset 51 (exact)"),
        pytest.param(["translate", "CONF", "orders", "0", "51", "--reverse"], "offset 41 (exact)", marks=pytest.mark.thorough),
        (["status", "CONF"], "mirror m, "),
        pytest.param(["report", "CONF", "--out", "OUT"], "page.html", marks=pytest.mark.thorough),
    ],
)
def test_reading_commands_import_neither_pyspark_nor_pandas(conf: Path, arguments: list[str], document: str) -> None:
    _let_clusters_be_given_up_soon(conf)
    _make_map(conf)
    given = {"CONF": str(conf), "OUT": str(conf.with_name("page.html"))}
    ended = console(*(given.get(argument, argument) for argument in arguments))
    assert (ended.code, ended.slow_imports) == (0, "[]"), ended.stderr
    assert document in "\n".join(ended.lines)


@pytest.mark.slow
def test_a_report_names_the_topics_that_are_paused_and_those_that_were(conf: Path, tmp_path: Path) -> None:
    _let_clusters_be_given_up_soon(conf)
    _make_map(conf)
    moments_ms = iter([60_000, 120_000])
    controls = Controls(
        TableStorage(MirrorConfig.load(conf).table_location).durable_table("controls", CONTROLS), lambda: next(moments_ms)
    )
    controls.add("pause", ["orders", "logs"])
    controls.add("resume", ["logs"])
    assert exit_code("report", str(conf), "--out", str(tmp_path / "page.html")) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Paused by an operator: orders since 1970-01-01 00:01:00." in text
    assert "<tr><td>orders</td><td>1970-01-01 00:01:00</td><td>still paused</td>" in text
    assert "<tr><td>logs</td><td>1970-01-01 00:01:00</td><td>1970-01-01 00:02:00</td><td>60.0 s</td></tr>" in text


def test_demo_ends_with_the_code_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    _put(monkeypatch, "shallow_mirror.demo.run", run_demo=lambda keep: 1 if keep else 0)
    assert (exit_code("demo"), exit_code("demo", "--keep")) == (0, 1)


def test_local_kafka_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    _put(monkeypatch, "shallow_mirror.local_kafka.command", run_local_kafka=lambda *args: asked.append(args))
    assert exit_code("local-kafka", "--clusters", "1", "--folder", str(tmp_path)) == 0
    assert exit_code("local-kafka", "--brokers", "3") == 0
    assert asked == [(1, "4.4.0", tmp_path, 1), (2, "4.4.0", None, 3)]
