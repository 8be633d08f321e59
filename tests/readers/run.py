"""make readers: which clients read topics with fillers (docs/concepts/preserved-offsets.md) correctly, as a Markdown table.

Starts a broker of its own. Each client has topics of its own, since a part of each log is written while the client waits.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.readers.cases import CASES, Case
from tests.readers.clients import CLIENTS, Client, NotAvailableError
from tests.readers.comparison import CORRECT, ReadRecord, judge, parse_records, parse_version
from tests.readers.written_log import CLEANING_BROKER, WrittenLog

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.local_kafka.node import LocalKafka

_READ_WITHIN_S = 40
_SETTLE_S = 1.5
"""So long a client waits at fillers at the end of the log, before more is written."""
_POLL_S = 0.1
_TAIL = 200
_BROKER = {**CLEANING_BROKER, "share.coordinator.state.topic.num.partitions": "1"}


class Reading(NamedTuple):
    """What became of one read. `version`: None if the program did not come so far."""

    verdict: str
    version: str | None
    seconds: float


class Program:
    """A client program that reads a log, with its output in files."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._output, self._errors = folder / "output", folder / "errors"
        self._started = time.monotonic()
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, record_count: int) -> None:
        """Return when it has read so many records, has ended, or its time is over."""
        while self._process.poll() is None and self.seconds < _READ_WITHIN_S:
            if len(parse_records(self.output())) >= record_count:
                return
            time.sleep(_POLL_S)

    def end(self) -> str | None:
        """Return how it failed, once it has ended; it is killed when its time is over. None: it did not."""
        try:
            code = self._process.wait(max(0.0, _READ_WITHIN_S - self.seconds))
        except subprocess.TimeoutExpired:
            return f"still waits after {_READ_WITHIN_S} s"
        finally:
            self._process.kill()
            self._process.wait()
        if code == 0:
            return None
        lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"]
        return f"exit code {code}: {lines[-1][:_TAIL]}"


def read(
    command: Sequence[str], log: WrittenLog, start: int, expected: Sequence[ReadRecord], live: Case | None = None
) -> Reading:
    """Have a program read from offset `start` on. `live`: the case that writes more when it has read the rest."""
    with tempfile.TemporaryDirectory() as folder:
        expected_count = len(expected) + (live.live_count if live else 0)
        program = Program([*command, log.key.topic, str(start), str(expected_count)], Path(folder))
        if live:
            program.wait_for(len(expected))
            time.sleep(_SETTLE_S)
            live.write_live(log)
            expected = [*expected, *log.records[-live.live_count :]]
        failure = program.end()
        output = program.output()
        return Reading(judge(expected, parse_records(output), failure), parse_version(output), program.seconds)


def try_client(client: Client, cases: Sequence[Case], node: LocalKafka, target: Cluster, folder: Path) -> list[str]:
    """Return the cells of its row: title, version, and a verdict for each case."""
    try:
        command = [*client.prepare(folder / client.name), node.bootstrap]
    except NotAvailableError as error:
        return [client.title, "", *[f"not available: {error}"] * len(cases)]
    versions, verdicts = set(), []
    for case in cases:
        readings = _try_case(client, command, case, node, target)
        versions |= {reading.version for reading in readings.values()}
        failures = [f"{where}: {reading.verdict}" for where, reading in readings.items() if reading.verdict != CORRECT]
        verdicts.append("; ".join(failures) or CORRECT)
    return [client.title, ", ".join(sorted(version or "unknown" for version in versions)), *verdicts]


def _try_case(client: Client, command: Sequence[str], case: Case, node: LocalKafka, target: Cluster) -> dict[str, Reading]:
    topic = f"{case.name.replace(' ', '-')}-{client.name}"
    log = WrittenLog(target.config, target, topic, case.settings)
    inside = case.write(log, node.folder / "data")
    readings = {"from the beginning": read(command, log, 0, list(log.records), live=case)}
    if client.seeks:
        expected = [record for record in log.records if record.offset >= inside]
        readings["from an offset in a hole"] = read(command, log, inside, expected)
    for where, reading in readings.items():
        print(f"{client.name}, {case.name}, {where}: {reading.verdict} ({reading.seconds:.0f} s)", flush=True)
    return readings


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    names = [client.name for client in CLIENTS]
    arguments.add_argument("--only", nargs="+", choices=names, default=names, metavar="CLIENT")
    case_names = [case.name for case in CASES]
    arguments.add_argument("--cases", nargs="+", choices=case_names, default=case_names, metavar="CASE")
    asked = arguments.parse_args()
    cases = [case for case in CASES if case.name in asked.cases]
    rows = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with LocalKafka(Path(folder) / "broker", properties=_BROKER) as node:
            target = Cluster(ClientConfig.from_properties({"bootstrap.servers": node.bootstrap}))
            try:
                for client in CLIENTS:
                    if client.name in asked.only:
                        rows.append(try_client(client, cases, node, target, Path(folder)))
            finally:
                target.close()
    print()
    for row in [["client", "version", *(case.name for case in cases)], ["---"] * (2 + len(cases)), *rows]:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
