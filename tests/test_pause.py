from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from tests.fakes.changes import AS_IT_SHOULD, error
from tests.fakes.strict_broker import StrictCluster
from tests.support import mirror_runs as runs

from shallow_mirror import cli
from shallow_mirror.checkpoints.logs.topics import Controls, TopicControls

UNREACHABLE = "127.0.0.1:1"


@pytest.fixture
def source() -> Iterator[StrictCluster]:
    with StrictCluster() as cluster:
        yield cluster


def _conf(folder: Path, source: str, target: str, include: Sequence[str]) -> Path:
    """Return a mirror file. A target that does not answer is given up soon."""
    path = runs.conf_file(folder, source, target, include)
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    settings["target"]["client"]["request.timeout.ms"] = 50
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def _say(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    return int(ended.value.code or 0)


def test_topics_are_paused_and_continue_also_before_the_first_run(
    source: StrictCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for topic in ("orders", "orders.eu", "orders.us"):
        source.create_topic(topic)
    conf = str(_conf(tmp_path, source.bootstrap, UNREACHABLE, ["orders.*"]))
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
    conf = str(_conf(tmp_path, UNREACHABLE, UNREACHABLE, ["orders.*"]))
    assert _say("pause", conf, "orders", "bills", "__consumer_offsets") == 2
    output = capsys.readouterr().err
    assert "bills: this mirror has no such topic (topics.include and topics.exclude of" in output
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_topic_that_the_source_does_not_have_is_an_error(
    source: StrictCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    source.create_topic("orders")
    conf = str(_conf(tmp_path, source.bootstrap, UNREACHABLE, [".*"]))
    assert _say(command, conf, "orders", "nosuch") == 2
    assert "ConfigError: nosuch: the source cluster east has no such topic: check the name" in capsys.readouterr().err
    assert not Controls.open(str(tmp_path / "tables")).read().paused


def test_a_new_topic_that_one_broker_does_not_list_yet_is_not_called_missing(source: StrictCluster, tmp_path: Path) -> None:
    source.create_topic("orders")
    source.change("Metadata", AS_IT_SHOULD, error(3, ("orders", -1)))  # the first request is for the id of the cluster
    conf = str(_conf(tmp_path, source.bootstrap, UNREACHABLE, [".*"]))
    assert _say("pause", conf, "orders") == 0
    assert Controls.open(str(tmp_path / "tables")).paused().keys() == {"orders"}


def test_a_resume_that_changes_nothing_does_not_take_a_topic_back_that_is_handed_over_in_this_moment(
    source: StrictCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_topic("orders")
    conf = str(_conf(tmp_path, source.bootstrap, UNREACHABLE, ["orders"]))
    read, looks = Controls.read, 0

    def look(controls: Controls) -> TopicControls:
        nonlocal looks
        looks += 1
        state = read(controls)
        if looks == 2:  # the first one is of the check of names
            controls.add("hand-over", ["orders"])
        return state

    monkeypatch.setattr(Controls, "read", look)
    assert _say("resume", conf, "orders") == 0
    assert capsys.readouterr().out == "orders: was not paused\n"
    assert read(Controls.open(str(tmp_path / "tables"))).moving == frozenset({"orders"})


def test_a_topic_is_resumed_while_the_source_is_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = str(_conf(tmp_path, UNREACHABLE, UNREACHABLE, [".*"]))
    Controls.open(str(tmp_path / "tables")).add("pause", ["orders"])
    assert _say("resume", conf, "orders") == 0
    assert capsys.readouterr().out == "orders: resumed\n"


@pytest.mark.slow
def test_a_topic_that_was_handed_over_stays_so_whatever_an_operator_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = str(_conf(tmp_path, UNREACHABLE, UNREACHABLE, ["orders.*"]))
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
