"""`run` with several mirror files, without Spark: signals, options, the exit code and the last line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from shallow_mirror import cli
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, FencedError, MirrorError


@pytest.fixture(autouse=True)
def _same_handlers_after() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class FakeMirrors:
    """Ends with `errors` after the signal that it sends to its own process."""

    errors: Sequence[MirrorError | None] = ()
    options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, configs: Sequence[MirrorConfig]) -> None:
        self._configs = configs
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def run(self, spark: Any, **options: Any) -> list[Any]:
        self.options.update(options)
        os.kill(os.getpid(), signal.SIGTERM)
        assert self._is_stopped
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # a second signal ends the process at once
        return [
            SimpleNamespace(mirror=config.mirror, error=error) for config, error in zip(self._configs, self.errors, strict=True)
        ]


def exit_code(
    monkeypatch: pytest.MonkeyPatch, folder: Path, errors: Sequence[MirrorError | None], *options: str
) -> tuple[int, type[FakeMirrors]]:
    for number in range(len(errors)):
        document = {
            "mirror": f"m{number}",
            "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
            "target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2"}},
            "topics": {"include": ["orders"]},
            "tables": f"tables-{number}",
        }
        (folder / f"{number}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    fake = type("Fake", (FakeMirrors,), {"errors": errors, "options": {}})
    module = ModuleType("shallow_mirror.streaming.runs.mirrors")
    vars(module)["Mirrors"] = fake
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(folder), *options])
    return int(ended.value.code or 0), fake


def test_sigterm_ends_all_mirrors_with_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, fake = exit_code(monkeypatch, tmp_path, [None, None], "--available-now", "--for", "3")
    assert code == 0
    assert fake.options == {"available_now": True, "for_seconds": 3.0}


def test_the_last_line_names_the_mirrors_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = exit_code(monkeypatch, tmp_path, [ConfigError("x"), None, FencedError("run 7")])
    assert code == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("2 of 3 mirrors ended with an error: m0 (ConfigError), m2 (FencedError)")
