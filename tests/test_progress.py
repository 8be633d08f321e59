"""A command that waits is not silent: it repeats what it waits for, and since when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.progress import SILENCE_S, Spoken


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines_of(spoken: Spoken, clock: Clock, seconds: int) -> None:
    """Look every second, as the thread does."""
    for _ in range(seconds):
        clock.now_s += 1
        spoken.break_silence()


def test_what_is_waited_for_is_repeated_with_the_time_so_far(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    spoken = Spoken("migrate run: waits for both clusters", clock)
    lines_of(spoken, clock, 31)
    spoken.says("all: verify ...")
    lines_of(spoken, clock, int(SILENCE_S) - 1)
    assert capsys.readouterr().err.splitlines() == [
        "migrate run: waits for both clusters: for 15 s so far",
        "migrate run: waits for both clusters: for 30 s so far",
        "all: verify ...",
    ]
    lines_of(spoken, clock, 1)
    assert capsys.readouterr().err == "all: verify: for 15 s so far\n"


def test_progress_is_said_with_it_until_the_next_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    class Progress(SimpleNamespace):
        def __str__(self) -> str:
            return "orders-0 at 400"

    at: Any = Progress(done_offsets=400, total_offsets=1000)
    spoken = Spoken("", clock)
    spoken.says("all: verify ...")
    spoken.progress(at)
    lines_of(spoken, clock, 15)
    spoken.awaits("groups: waits for commits at west")
    lines_of(spoken, clock, 15)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "all: verify: for 15 s so far (40 % of 1,000 offsets; orders-0 at 400)",
        "groups: waits for commits at west: for 15 s so far",
    ]


def test_the_thread_breaks_the_silence_and_ends_with_the_block(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shallow_mirror.progress._LOOK_S", 0.001)
    clock = Clock()
    with Spoken("waits", clock) as spoken:
        clock.now_s = SILENCE_S
        while "15 s so far" not in capsys.readouterr().err:
            spoken._stop.wait(0.01)
    assert not spoken._thread.is_alive()
