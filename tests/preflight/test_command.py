from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.preflight.conftest import Planned
from tests.support import mirror_runs as runs
from tests.support.console_entry import Ended, console
from tests.support.record_batches import batch


@pytest.fixture
def conf(planned: Planned, tmp_path: Path) -> Path:
    document = runs.document(planned.source.bootstrap, planned.target.bootstrap, ["orders"])
    path = tmp_path / "mirror.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    planned.topic("orders", **{"max.message.bytes": "200"})
    planned.source.seed(("orders", 0), batch(0, 3), batch(3, 3))
    return path


def preflight(conf: Path, *options: str) -> Ended:
    return console("preflight", str(conf), *options)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [("--all",), ("--sample", "1")], ids=str)
def test_nothing_refused_is_0_and_nothing_is_imported_that_takes_long(conf: Path, options: tuple[str, ...]) -> None:
    ended = preflight(conf, *options)
    assert (ended.code, ended.stderr, ended.slow_imports) == (0, "", "[]")
    assert ended.lines[0].endswith(": no batch that was read would be refused")
    assert not (conf.parent / "tables").exists()


@pytest.mark.slow
def test_something_refused_is_1_also_for_machines(conf: Path, planned: Planned) -> None:
    planned.source.seed(("orders", 0), batch(6, 1, payload=b"x" * 900))
    ended = preflight(conf, "--json")
    document = json.loads(ended.lines[0])
    assert (ended.code, document["is_fine"], document["sample_bytes"]) == (1, False, 64 << 20)
    assert document["topics"][0]["refused"]["batch_count"] == 1


@pytest.mark.thorough
def test_wrong_usage_is_2(conf: Path) -> None:
    both = preflight(conf, "--all", "--sample", "5")
    assert (both.code, both.stderr) == (2, "ConfigError: --sample and --all exclude each other\n")
    assert preflight(conf, "--sample", "0").code == 2
    assert preflight(conf.with_name("nowhere.yaml")).code == 2
