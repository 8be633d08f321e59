from __future__ import annotations

import socket
from pathlib import Path

import pytest

from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.ports import KeptPorts


def test_a_folder_that_is_started_again_has_the_ports_of_its_last_good_start(tmp_path: Path) -> None:
    first = KeptPorts(tmp_path / "ports")
    chosen = first.choose(3)
    first.keep()
    failed = KeptPorts(tmp_path / "ports")
    assert failed.choose(3) == chosen
    assert failed.choose(3) != chosen
    assert KeptPorts(tmp_path / "ports").choose(3) == chosen


def test_ports_that_are_taken_or_too_few_give_way_to_others_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        (tmp_path / "ports").write_text(f"{number}\n")
        kept = KeptPorts(tmp_path / "ports")
        (port,) = kept.choose(1)
    assert port != number
    assert "there are new addresses" in caplog.text
    kept.keep()
    assert KeptPorts(tmp_path / "ports").choose(1) == [port]
    assert len(KeptPorts(tmp_path / "ports").choose(2)) == 2
    assert len(caplog.records) == 2


def test_a_file_that_holds_no_ports_is_named(tmp_path: Path) -> None:
    (tmp_path / "ports").write_text("20001\nnone\n")
    with pytest.raises(ConfigError, match=r"ports contains something other than ports: delete it"):
        KeptPorts(tmp_path / "ports")
