from __future__ import annotations

import pytest
from tests.support.inline_session import InlineSession

from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.runs import micro_batch_choice
from shallow_mirror.streaming.runs.micro_batch_choice import choose_micro_batches
from shallow_mirror.streaming.runs.micro_batch_loop import loop_micro_batches
from shallow_mirror.streaming.runs.micro_batch_stream import stream_micro_batches


def _without_admission_control(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch_choice, "has_admission_control", lambda: False)


def test_a_classic_session_with_admission_control_streams_unless_the_loop_is_set() -> None:
    session = InlineSession()
    assert choose_micro_batches("auto", session) is stream_micro_batches
    assert choose_micro_batches("stream", session) is stream_micro_batches
    assert choose_micro_batches("loop", session) is loop_micro_batches
    assert choose_micro_batches("auto", session, transfer="through-spark") is stream_micro_batches


def test_without_admission_control_the_driver_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_admission_control(monkeypatch)
    assert choose_micro_batches("auto", InlineSession()) is loop_micro_batches
    with pytest.raises(ConfigError, match=r"stream is not possible here: PySpark 4.2 has no admission control .*loop, or auto"):
        choose_micro_batches("stream", InlineSession())


def test_a_session_of_spark_connect_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch_choice, "is_connect", lambda _spark: True)
    assert choose_micro_batches("auto", InlineSession()) is loop_micro_batches
    with pytest.raises(ConfigError, match="Spark Connect runs the function of foreachBatch in another process"):
        choose_micro_batches("stream", InlineSession())


def test_rows_through_spark_need_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"through-spark needs micro_batches: stream.*it was set.*transfer: direct"):
        choose_micro_batches("loop", InlineSession(), transfer="through-spark")
    _without_admission_control(monkeypatch)
    with pytest.raises(ConfigError, match=r"through-spark needs micro_batches: stream.*no admission control"):
        choose_micro_batches("auto", InlineSession(), transfer="through-spark")
