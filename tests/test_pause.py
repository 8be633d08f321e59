from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import mirror_runs as runs

from shallow_mirror import cli
from shallow_mirror.checkpoints.controls import Controls

BROKER = "127.0.0.1:1"


def _say(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    return int(ended.value.code or 0)


def test_topics_are_paused_and_continue_also_before_the_first_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = str(runs.conf_file(tmp_path, BROKER, BROKER, ["orders.*"]))
    assert _say("pause", conf, "orders", "orders.eu") == 0
    assert _say("pause", conf, "orders") == 0
    assert _say("resume", conf, "orders", "orders.us") == 0
    output = capsys.readouterr().out.splitlines()
    assert output == [
        "orders: paused",
        "orders.eu: paused",
        "orders: was paused already",
        "orders: resumed",
        "orders.us: was not paused",
    ]


def test_a_topic_of_no_mirror_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = str(runs.conf_file(tmp_path, BROKER, BROKER, ["orders.*"]))
    assert _say("pause", conf, "orders", "bills", "__consumer_offsets") == 2
    output = capsys.readouterr().err
    assert "bills: this mirror has no such topic (topics.include and topics.exclude of" in output
    assert not (tmp_path / "tables").exists()


def test_a_topic_that_was_handed_over_stays_so_whatever_an_operator_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = str(runs.conf_file(tmp_path, BROKER, BROKER, ["orders.*"]))
    controls = Controls.open(str(tmp_path / "tables"))
    controls.add("hand-over", ["orders"])
    controls.add("handed-over", ["orders"])
    assert _say("pause", conf, "orders") == 0
    assert _say("resume", conf, "orders") == 0
    assert capsys.readouterr().out.splitlines() == [
        "orders: paused; a migration has handed it over, so it was not copied any more",
        "orders: resumed; a migration has handed it over, so it is not copied",
    ]
    assert _say("resume", conf, "orders") == 2
    assert "the mirror in the other direction may write to it" in capsys.readouterr().err
    assert controls.read().handed_over.keys() == {"orders"}
