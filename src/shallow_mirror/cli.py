"""The command line. Answers on stdout, logs and progress on stderr; reading commands start no JVM, except for catalog tables.

Exit codes: 0 done; 1 a difference, something that will be refused, or stopped on an error; 2 wrong usage or configuration;
3 fenced by another run; 4 the operator must run `recover`. 3 and 4 must not be restarted automatically.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shallow_mirror.errors import ConfigError, Fenced, MirrorError, RecoverNeeded

if TYPE_CHECKING:
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.streaming.mirror import Mirror

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

EXIT_ERROR, EXIT_CONFIG, EXIT_FENCED, EXIT_RECOVER = 1, 2, 3, 4
EXIT_DIFFERENT, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 1, 130

app = typer.Typer(
    name="shallow-mirror",
    help="Copies Kafka topics between clusters by raw record batches, exactly once, and keeps an exact map of offsets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_READING_COMMANDS = ("preflight", "status", "translate", "recover", "verify", "quarantine")
_OWN_PROCESS = object()


class _LeanImports(Loader):
    """Of commands that only read, in a process of their own. Half of their start was what others import and they never use:
    pyarrow looks for pandas only to ask whether a value is one of its arrays, and kafka-python brings its clients along."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of commands that only read", name=name)
        found = PathFinder.find_spec(name) if name == "kafka" else None
        if found is not None:
            found.loader = self
        return found

    def exec_module(self, module: ModuleType) -> None:
        """A package whose own file is not run: its modules are found all the same."""


quarantine = typer.Typer(
    help="Batches that the target refused for good, kept as the source sent them (write.on_refused: quarantine).",
    no_args_is_help=True,
)
app.add_typer(quarantine, name="quarantine")

_Conf = Annotated[Path, typer.Argument(metavar="CONF", help="The mirror file (YAML).")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@app.callback()
def _prepare(context: typer.Context, verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False) -> None:
    if context.obj is _OWN_PROCESS and context.invoked_subcommand in _READING_COMMANDS:
        sys.meta_path.insert(0, _LeanImports())
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if not verbose else logging.DEBUG,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs errors that are raised here as well


@app.command()
def run(
    conf: _Conf,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Catch up to the offsets of the start, then end.")
    ] = False,
    for_seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0.0, help="End after so many seconds.")
    ] = None,
) -> None:
    """Run the mirror until Ctrl-C or SIGTERM, which end it at a micro-batch boundary (a second one ends it at once)."""
    from shallow_mirror.streaming.mirror import Mirror

    mirror = Mirror.from_file(conf)
    _log_settings(mirror.config)
    _stop_on_signals(mirror)
    mirror.run(_submitted_session(), available_now=available_now, for_seconds=for_seconds)


@app.command()
def preflight(
    conf: _Conf,
    sample_bytes: Annotated[
        int | None, typer.Option("--sample", metavar="BYTES", min=1, help="Read about so much of each partition (64 MiB).")
    ] = None,
    reads_all: Annotated[bool, typer.Option("--all", help="Read everything up to the log ends of now.")] = False,
    as_json: _Json = False,
) -> None:
    """What the mirror would meet and do, before it runs: batches that pass, are rebuilt or refused (exit code 1), settings,
    rights, time. Changes nothing anywhere."""
    from rich.console import Console

    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.preflight import DEFAULT_SAMPLE_BYTES, check, view
    from shallow_mirror.progress import progress_on
    from shallow_mirror.streaming.status_view import stdout_console

    if reads_all and sample_bytes is not None:
        raise ConfigError("--sample and --all exclude each other")
    sample_bytes = None if reads_all else sample_bytes or DEFAULT_SAMPLE_BYTES
    config = MirrorConfig.load(conf)
    with (
        _session_for(config) as spark,
        _interruptible("nothing was changed"),
        progress_on(Console(stderr=True), "preflight") as on_progress,
    ):
        report = check(config, spark=spark, sample_bytes=sample_bytes, on_progress=on_progress)
    view.show(report, stdout_console(), as_json=as_json)
    if not report.is_fine:
        raise typer.Exit(EXIT_REFUSED)


@app.command()
def status(
    conf: _Conf,
    is_watching: Annotated[bool, typer.Option("--watch", help="Show it again and again until Ctrl-C.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="Pause between two reports of --watch.")
    ] = 5.0,
    as_json: _Json = False,
) -> None:
    """Positions, lag in offsets and ms, the last micro-batches, the run, and what the mirror waits for."""
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.streaming import status_view
    from shallow_mirror.streaming.status import gather_status

    config, console = MirrorConfig.load(conf), status_view.stdout_console()
    with _session_for(config) as spark:
        if is_watching:
            status_view.watch(lambda: gather_status(config, spark=spark), console, interval_s=interval_s, as_json=as_json)
        else:
            status_view.show(gather_status(config, spark=spark), console, as_json=as_json)


@app.command()
def translate(
    conf: _Conf,
    topic: str,
    partition: int,
    offset: int,
    reverse: Annotated[bool, typer.Option("--reverse", help="TOPIC, PARTITION and OFFSET are the target's.")] = False,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="Use the map as it was at this time (ISO 8601 with zone).")
    ] = None,
    topic_id: Annotated[
        str | None, typer.Option("--topic-id", help="Which incarnation of a recreated topic; the newest by default.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Source offset to target offset, or back."""
    from shallow_mirror.checkpoints.offset_map import OffsetMap
    from shallow_mirror.config import MirrorConfig

    at, config = _time_of(as_of), MirrorConfig.load(conf)
    with _session_for(config) as spark:
        offset_map = OffsetMap.open(config.tables, spark)
        look_up = offset_map.reverse if reverse else offset_map.translate
        found = look_up(topic, partition, offset, as_of=at, topic_id=topic_id)
    answer = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "kind": None if found.kind is None else str(found.kind),
        "exact": found.exact,
        "beyond": found.beyond,
        "target_topic": found.target_topic,
        "target_partition": found.target_partition,
        "target_offset": found.target_offset,
        "as_of": as_of,
    }
    print(json.dumps(answer) if as_json else _translation_sentence(answer, is_reverse=reverse))


@app.command()
def verify(
    conf: _Conf,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="T", help="Only this source topic; may be repeated.")
    ] = None,
    is_deep: Annotated[bool, typer.Option("--deep", help="Open every batch and compare record by record.")] = False,
    from_start: Annotated[bool, typer.Option("--from-start", help="Do not continue an audit that was interrupted.")] = False,
    as_json: _Json = False,
) -> None:
    """Proof of copy: read both clusters through the offset map and say everything that differs (exit code 1)."""
    from rich.console import Console

    from shallow_mirror import audit
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.progress import progress_on

    config = MirrorConfig.load(conf)
    with (
        _interruptible("what was verified is kept: the same command goes on from there"),
        _session_for(config) as spark,
        progress_on(Console(stderr=True), "verify") as on_progress,
    ):
        report = audit.verify(config, topics=topics, is_deep=is_deep, from_start=from_start, on_progress=on_progress, spark=spark)
    print(json.dumps(report.document()) if as_json else "\n".join(report.sentences()))
    if not report.is_equal:
        raise typer.Exit(EXIT_DIFFERENT)


@app.command()
def recover(
    conf: _Conf,
    is_commit: Annotated[bool, typer.Option("--commit", help="The records are on the target: keep their rows.")] = False,
    is_redo: Annotated[bool, typer.Option("--redo", help="The records are not on the target: copy them again.")] = False,
    slots: Annotated[
        list[int] | None, typer.Option("--slot", metavar="N", help="Choose for this slot only; may be repeated.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """What is known of a decision that `run` could not resolve (exit code 4), and the operator's choice."""
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.sinks.resolve import TxnFate
    from shallow_mirror.streaming import recover_view
    from shallow_mirror.streaming.recover import choose, look
    from shallow_mirror.streaming.status_view import stdout_console

    if is_commit and is_redo:
        raise ConfigError("--commit and --redo exclude each other")
    if slots and not (is_commit or is_redo):
        raise ConfigError("--slot goes with --commit or --redo")
    config, is_choosing = MirrorConfig.load(conf), is_commit or is_redo
    with _session_for(config, is_writing=is_choosing) as spark:
        reports = look(config, spark)
        recover_view.show(reports, stdout_console(), as_json=as_json)
        needs_choice = any(one.needs_choice for one in reports)
        if needs_choice and not is_choosing:
            raise typer.Exit(EXIT_RECOVER)
        if needs_choice:
            choose(config, reports, TxnFate.COMMITTED if is_commit else TxnFate.NOT_COMMITTED, slots or (), spark)
    if needs_choice:
        print("resolved: `shallow-mirror run` goes on from here", file=sys.stderr)


@quarantine.callback()
def _quarantine(context: typer.Context, conf: _Conf) -> None:
    context.obj = conf


@quarantine.command("list")
def quarantine_list(
    context: typer.Context,
    is_all: Annotated[bool, typer.Option("--all", help="Those as well that were released since.")] = False,
    as_json: _Json = False,
) -> None:
    """What is in quarantine, why, and what to do."""
    from shallow_mirror.checkpoints.quarantine import Quarantine
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.streaming.quarantine import show
    from shallow_mirror.streaming.status_view import stdout_console

    config = MirrorConfig.load(context.obj)
    with _session_for(config) as spark:
        entries = [one for one in Quarantine.open(config.tables, spark).entries() if is_all or not one.is_released]
    show(entries, stdout_console(), as_json=as_json)


@quarantine.command("export")
def quarantine_export(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made if it is not there.")],
    is_all: Annotated[bool, typer.Option("--all", help="Those as well that were released since.")] = False,
) -> None:
    """A file a batch with its bytes as the source sent them, and a line of JSON each in batches.jsonl."""
    from shallow_mirror.checkpoints.quarantine import Quarantine
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.streaming.quarantine import export

    config = MirrorConfig.load(context.obj)
    with _session_for(config) as spark:
        found = Quarantine.open(config.tables, spark)
        count = export(found, [one for one in found.entries() if is_all or not one.is_released], folder)
    print(f"{count} batches in {folder}")


@quarantine.command("retry")
def quarantine_retry(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option("--topic", metavar="T", help="Only of this source topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", metavar="P", help="Only of this partition.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", metavar="O", help="Only the batch that holds this offset.")] = None,
    takes_over: Annotated[
        bool, typer.Option("--take-over", help="Also from a run that seems to be alive: it ends with exit code 3.")
    ] = False,
) -> None:
    """Write them to the target once more, after the remedy, exactly once. They come to the end of their partitions: their order
    relative to what was copied since is lost. The mirror must be stopped; it goes on with its next start."""
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.streaming.quarantine import Selection
    from shallow_mirror.streaming.quarantine_retry import retry

    config = MirrorConfig.load(context.obj)
    selection = Selection(topic=topic, partition=partition, offset=offset)
    with _session_for(config, is_writing=True) as spark:
        report = retry(config, selection, spark, takes_over=takes_over)
    print("\n".join(report.sentences()))
    if report.refused:
        raise typer.Exit(EXIT_REFUSED)


@app.command()
def demo(keep: Annotated[bool, typer.Option("--keep", help="Leave the files of the demo where they are.")] = False) -> None:
    """Two real clusters on this machine, messy traffic, a mirror that is killed and resumed, and the proof of the copy."""
    from shallow_mirror.demo.run import run_demo

    raise typer.Exit(run_demo(keep))


@app.command("local-kafka")
def local_kafka(
    clusters: Annotated[int, typer.Option(min=1, max=9, help="How many clusters.")] = 2,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many brokers each of them has.")] = 1,
    version: Annotated[str, typer.Option(help="Kafka version; tried with 2.8.2, 3.9.2 and 4.3.0.")] = "4.3.0",
    folder: Annotated[Path | None, typer.Option(help="Where their data lives; a temporary folder by default.")] = None,
) -> None:
    """Real Kafka brokers in the foreground until Ctrl-C."""
    from shallow_mirror.local_kafka.command import run_local_kafka

    run_local_kafka(clusters, version, folder, brokers)


def exit_code_of(error: MirrorError) -> int:
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case Fenced():
            return EXIT_FENCED
        case RecoverNeeded():
            return EXIT_RECOVER
        case _:
            return EXIT_ERROR


def main(arguments: Sequence[str] | None = None) -> None:
    """Console entry point: always ends by SystemExit. Without `arguments` the process is taken to be ours alone."""
    if arguments is None:
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would look through all installed packages for some
    try:
        if arguments is None:
            app(prog_name="shallow-mirror", obj=_OWN_PROCESS)
        else:
            app(args=list(arguments), prog_name="shallow-mirror")
    except MirrorError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(exit_code_of(error))


def _log_settings(config: MirrorConfig) -> None:
    logging.getLogger(__name__).info("mirror %s: tables %s, Spark checkpoint %s", config.mirror, config.tables, config.checkpoint)


def _stop_on_signals(mirror: Mirror) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        for one in _STOP_SIGNALS:
            signal.signal(one, signal.SIG_DFL)  # a second signal ends this process at once, and Spark with it
        mirror.stop()

    for number in _STOP_SIGNALS:
        signal.signal(number, stop)


@contextlib.contextmanager
def _interruptible(left: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command; `left` says how it leaves things."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {left}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextlib.contextmanager
def _session_for(config: MirrorConfig, *, is_writing: bool = False) -> Iterator[Any]:
    """None for tables that are reached without Spark, and then nothing of it is imported."""
    from shallow_mirror.checkpoints.tables import is_read_by_spark

    if not is_writing and not is_read_by_spark(config.tables):
        yield None
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _LeanImports)]
    from shallow_mirror.streaming.session import session_for_tables

    with session_for_tables(config, _submitted_session(), is_writing=is_writing) as spark:
        yield spark


def _submitted_session() -> Any:
    """The session of `spark-submit`; None when the mirror builds its own."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _time_of(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--as-of: {text!r} is not an ISO-8601 time") from error
    if at.tzinfo is None:
        raise ConfigError(f"--as-of: {text!r} has no time zone: write {text}Z for UTC")
    return at.astimezone(UTC)


def _translation_sentence(answer: dict[str, Any], *, is_reverse: bool) -> str:
    asked = f"{answer['topic']}-{answer['partition']} offset {answer['offset']}"
    if answer["target_offset"] is None:
        return f"{asked}: the map knows no offset for it"
    found = f"{answer['target_topic']}-{answer['target_partition']} offset {answer['target_offset']}"
    how = (
        "exact"
        if answer["exact"]
        else "end of the map"
        if answer["beyond"]
        else f"next record; in a segment of kind {answer['kind']}"
    )
    return f"{'target' if is_reverse else 'source'} {asked} -> {'source' if is_reverse else 'target'} {found} ({how})"


if __name__ == "__main__":
    main()
