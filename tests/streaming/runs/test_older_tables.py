"""Tables that are put back after the mirror has copied more: refused, with every state of the checkpoint, and both ways on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import Running, catch_up, create_topic, read_values, write
from tests.support.preserved_logs import read_all

from shallow_mirror import cli
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import OlderTablesError
from shallow_mirror.streaming.runs import idle_map

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(300)]


def test_older_tables_copy_nothing_twice_unless_the_operator_says_so(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    preserved = f"{topic_name}.preserved"
    conf = runs.conf_file(
        tmp_path, source, target, [topic_name, preserved], topics={"offsets": {preserved: "preserved"}, "discovery": "0 seconds"}
    )
    settings, tables, older, newest = MirrorConfig.load(conf), tmp_path / "tables", tmp_path / "older", tmp_path / "newest"
    for topic in (topic_name, preserved):
        create_topic(source, topic)
        write(source, topic, ["1", "2"])
    catch_up(settings, spark)
    shutil.copytree(tables, older)
    for topic in (topic_name, preserved):
        write(source, topic, ["3"])
    catch_up(settings, spark)

    def put_back(folder: Path) -> None:
        shutil.rmtree(tables)
        shutil.copytree(folder, tables)

    shutil.copytree(tables, newest)
    put_back(older)
    with pytest.raises(OlderTablesError):
        catch_up(settings, spark)
    shutil.rmtree(settings.checkpoint)
    with pytest.raises(OlderTablesError):
        catch_up(settings, spark)
    for arguments, code in (
        (["recover", str(conf)], 4),
        (["preflight", str(conf)], 1),
        (["groups", str(conf), "--apply"], 4),
        (["status", str(conf)], 0),
        (["verify", str(conf)], 4),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        output = capsys.readouterr()
        assert (ended.value.code or 0) == code
        assert "the tables are older than the target" in output.out + output.err
        assert "not in map" not in output.out
    assert read_values(target, topic_name) == ["1", "2", "3"]

    with pytest.raises(SystemExit) as ended:
        cli.main(["recover", str(conf), "--accept-repeats"])
    assert ended.value.code in (0, None)
    catch_up(settings, spark)
    assert read_values(target, topic_name) == ["1", "2", "3", "3"]
    assert [value for _, value in read_all(target, preserved, "read_uncommitted")] == [b"1", b"2", b"3"]
    before = tmp_path / "before"
    shutil.copytree(tables, before)
    for command in ("pause", "resume"):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, str(conf), topic_name])
        assert not ended.value.code
    catch_up(settings, spark)
    put_back(before)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(["status", str(conf), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert f"-controls on the target notes row 2 (resume of {topic_name}, " in document["older_tables"]
    with pytest.raises(OlderTablesError, match=rf"-controls on the target notes row 2 \(resume of {topic_name}, "):
        catch_up(settings, spark)
    with pytest.raises(SystemExit) as ended:
        cli.main(["preflight", str(conf)])
    assert ended.value.code
    assert "their newest row of the table controls is none" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(SystemExit) as ended:
        cli.main(["recover", str(conf), "--accept-repeats"])
    assert ended.value.code in (0, None)
    catch_up(settings, spark)
    assert read_values(target, topic_name) == ["1", "2", "3", "3"]

    put_back(newest)
    with pytest.raises(OlderTablesError):
        catch_up(settings, spark)

    shutil.rmtree(tables)
    with pytest.raises(SystemExit) as ended:
        cli.main(["pause", str(conf), topic_name])
    assert ended.value.code == 2
    assert "the tables are new, but the target knows the transactional id" in capsys.readouterr().err.replace("\n", " ")
    assert not (tables / "controls").exists()


@pytest.mark.usefixtures("micro_batch_loop")
def test_a_running_mirror_copies_no_paused_topic_while_its_controls_are_away_and_ends_with_older_ones(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    paused, other = f"{topic_name}.paused", f"{topic_name}.other"
    conf = runs.conf_file(tmp_path, source, target, [paused, other])
    settings, controls, older = MirrorConfig.load(conf), tmp_path / "tables" / "controls", tmp_path / "older"
    for topic in (paused, other):
        create_topic(source, topic)
        write(source, topic, ["1"])

    said = ""

    def is_said(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return text in said

    def pause(topic: str) -> None:
        with pytest.raises(SystemExit) as ended:
            cli.main(["pause", str(conf), topic])
        assert not ended.value.code
        mirror.wait_for("the pause", lambda: is_said(f"topic {topic} is paused"))

    with Running(settings, spark) as mirror:
        mirror.wait_for("the first records", lambda: runs.positions(settings) == {(paused, 0): 1, (other, 0): 1})
        pause(paused)
        shutil.copytree(controls, older)
        write(source, paused, ["2"])
        controls.rename(tmp_path / "newest")
        mirror.wait_for("a look at the controls", lambda: is_said("it has no rows, of 1 row that were read"))
        (tmp_path / "newest").rename(controls)
        pause(other)
        shutil.rmtree(controls)
        shutil.copytree(older, controls)
        with pytest.raises(OlderTablesError, match=rf"but this run has read row 2 \(pause of {other}\)"):
            mirror.wait_for_error()
    assert read_values(target, paused) == ["1"]


@pytest.mark.usefixtures("micro_batch_loop")
def test_a_mirror_without_work_ends_where_its_map_was_exchanged_for_an_older_one(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    settings = MirrorConfig.load(runs.conf_file(tmp_path, source, target, [topic_name]))
    offset_map, older, newest = tmp_path / "tables" / "offset_map", tmp_path / "older", tmp_path / "newest"
    create_topic(source, topic_name)
    write(source, topic_name, ["1"])
    monkeypatch.setattr(idle_map, "LOOK_EVERY_S", 1.0)
    with Running(settings, spark) as mirror:
        mirror.wait_for("the first record", lambda: runs.positions(settings) == {(topic_name, 0): 1})
        shutil.copytree(offset_map, older)
        write(source, topic_name, ["2"])
        mirror.wait_for("the second record", lambda: runs.positions(settings) == {(topic_name, 0): 2})
        offset_map.rename(newest)
        older.rename(offset_map)
        with pytest.raises(OlderTablesError, match="but this run has written version"):
            mirror.wait_for_error()
    with pytest.raises(OlderTablesError, match="has the receipt of decision"):
        catch_up(settings, spark)
    shutil.rmtree(offset_map)
    newest.rename(offset_map)
    write(source, topic_name, ["3"])
    catch_up(settings, spark)
    assert read_values(target, topic_name) == ["1", "2", "3"]
