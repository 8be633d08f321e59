"""Processes go on one at a time, in the order of the moments they wait for, and die where they are killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.operators.lives import KilledError, Lives
from tests.operators.moves.processes import Process, Processes, SteppedClock


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes(SteppedClock(), Lives(), lambda _: None)
    with made.ended():
        yield made


def test_whoever_waits_for_the_earliest_moment_goes_on(processes: Processes) -> None:
    seen: list[str] = []

    def wait(name: str, *pauses_s: float) -> Process:
        def body() -> None:
            for pause_s in pauses_s:
                processes.sleep(pause_s)
                seen.append(f"{name} at {pause_s}")

        return processes.start(name, body)

    started = [wait("a", 3.0), wait("b", 1.0, 5.0)]
    processes.at(4.0, lambda: seen.append("script"))
    processes.run_until(lambda: all(process.is_over for process in started))
    assert seen == ["b at 1.0", "a at 3.0", "script", "b at 5.0"]


def test_a_killed_process_and_its_threads_do_nothing_any_more(processes: Processes) -> None:
    seen: list[str] = []

    def thread() -> None:
        processes.sleep(2.0)
        seen.append("thread")

    def body() -> None:
        processes.start_thread(thread)
        try:
            processes.sleep(1.0)
        except KilledError:
            seen.append("killed")
            raise

    process = processes.start("p", body)
    processes.at(0.5, lambda: processes.kill(process))
    processes.at(5.0, lambda: seen.append("end"))
    processes.run_until(lambda: "end" in seen)
    assert (seen, process.is_over, process.error) == (["killed", "end"], True, None)


def test_an_error_is_kept_for_whoever_has_started_the_process(processes: Processes) -> None:
    def body() -> None:
        raise ValueError("wrong")

    process = processes.start("p", body)
    processes.run_until(lambda: process.is_over)
    assert isinstance(process.error, ValueError)
