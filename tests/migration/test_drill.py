"""Writers and groups move to another cluster and back, while they run, and every group reads every record once."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.groups.group_runs import consume
from tests.migration.migrations import Scene, running_application, scene
from tests.support import mirror_runs as runs
from tests.support.console_entry import console

from shallow_mirror.errors import ConfigError, LateWritesError
from shallow_mirror.migration import Options, Phase, read_late_writes, read_state, roll_back, run_migration, view
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.steps import Direction, Step

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(200)]

PARTITIONS = 12


def test_writers_and_groups_move_and_come_back_and_every_group_reads_every_record_once(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    opened = running_application(tmp_path, two_clusters, topic_name, PARTITIONS, reverse={"start": "conductor"})
    with opened as (made, application, operator):
        options = Options(launch=made.launch)
        moved = run_migration(made.files(), operator, options)
        assert moved.waves["all"].phase is Phase.MOVED, operator.lines
        tables = made.files().config.tables
        shutil.copytree(tables, tmp_path / "before")
        time.sleep(1)
        back = roll_back(made.files(), operator, options=options)
        assert back.waves["all"].phase is Phase.RETURNED, operator.lines
        shutil.rmtree(tables)
        shutil.copytree(tmp_path / "before", tables)
        with pytest.raises(ConfigError, match="the table of drill is older than the target"):
            roll_back(made.files(), operator, options=options)
        application.stop_writers()
        application.await_everything_read()
        print("stopped", application.stopped_s, {step: detail["seconds"] for step, detail in operator.details.items()})
    assert application.differences() == {}
    assert sum(application.written.values()) > 100


class Silent:
    """`Reports` of a move in which nobody has to act. `then`: what happens once a step is done."""

    def __init__(self, then: Mapping[Step, Callable[[], None]]) -> None:
        self._then = dict(then)

    def begun(self, wave: str, step: Step) -> None: ...
    def waits(self, outside: Outside) -> None: ...
    def says(self, sentence: str) -> None: ...

    def done(self, wave: str, step: Step, detail: Mapping[str, Any]) -> None:
        self._then.pop(step, lambda: None)()


def status_of(made: Scene) -> dict[str, Any]:
    """Return what `migrate status --json` prints of the wave."""
    state = read_state(made.files())
    (wave,) = view.state_document(state, "drill", read_late_writes(made.files(), state))["waves"]
    return dict(wave)


@pytest.mark.long
def test_a_rollback_with_late_writes_and_a_grown_topic_goes_on_with_the_command_that_it_names(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target, group = two_clusters.source.bootstrap, two_clusters.target.bootstrap, f"{topic_name}.group"
    runs.create_topic(source, topic_name)
    now_ms = int(time.time() * 1000)
    for number, pause_ms in enumerate((60_000, 20_000)):
        batch = [(f"before-{number}-{value}", now_ms - pause_ms) for value in range(10)]
        runs.write_stamped(source, topic_name, batch, is_idempotent=True)
    assert len(consume(source, group, topic_name, 1)) == 20
    with scene(tmp_path, two_clusters, [topic_name], [group], reverse={"start": "conductor"}) as made:
        made.start_forward()
        with closing(Passage(made.files(), made.files().config.waves[0], Direction.MOVE)) as passage:
            assert passage.longest_pause_s() == 40.0, "between two producers"
        first, second = ([f"{name}-{number}" for number in range(5)] for name in ("late", "later"))
        late = Silent({Step.POINT_OF_NO_RETURN: lambda: runs.write(source, topic_name, first)})
        run_migration(made.files(), late, Options(launch=made.launch))
        runs.add_partitions(target, topic_name, 2)
        for partition in range(2):
            runs.write(target, topic_name, [f"after-{partition}-{number}" for number in range(10)], partition)
        back = made.files().reverses["all"]
        runs.wait_for("copies of both partitions", lambda: runs.positions(back).get((topic_name, 1)) == 10)
        with runs.open_transaction(source, topic_name, second, partition=0):  # between copies
            (unfinished,) = (line for line in console("migrate", "late-writes", str(made.file)).lines if "transaction" in line)
            assert f"a transaction by writer-of-{topic_name} is open: no mirror copies what it commits" in unfinished

        assert [(write["partition"], write["record_count"]) for write in status_of(made)["late_writes"]] == [(0, 5), (0, 5)]
        with pytest.raises(LateWritesError, match=rf"{topic_name}-0 offsets 20 to 24 \(5 records\)") as refused:
            roll_back(made.files(), Silent({}))
        (command,) = re.findall(r"`(shallow-mirror [^`]+ --carry)`", str(refused.value))
        settled = console(*shlex.split(command)[1:])
        assert settled.code == 0, settled.stderr
        assert f"wave all: 2 ranges copied to {topic_name} at west" in settled.lines

        read = consume(target, group, topic_name, 2)
        assert sorted(read) == sorted([*first, *second, *(f"after-{part}-{number}" for part in range(2) for number in range(10))])
        roll_back(made.files(), Silent({}))
    status = status_of(made)
    assert (status["phase"], status["late_writes"], len(status["settled_late_writes"])) == ("rolled back", [], 2)
    for partition in range(2):
        runs.write(source, topic_name, [f"last-{partition}"], partition)
    assert sorted(consume(source, group, topic_name, 2)) == ["last-0", "last-1"]
