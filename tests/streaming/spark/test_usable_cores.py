"""Cores that a process may use, by what the kernel says of its control groups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from shallow_mirror.streaming.spark.usable_cores import control_groups, cpu_limit, usable_cores

SERVICE = "0::/system.slice/shallow-mirror.service\n"


@pytest.mark.parametrize(
    ("text", "cores"),
    [("200000 100000\n", 2.0), ("150000 100000", 1.5), ("max 100000\n", None), ("", None), ("100000", None), ("1 0", None)],
)
def test_a_limit_is_a_quota_in_a_period(text: str, cores: float | None) -> None:
    assert cpu_limit(text) == cores


def test_the_group_and_its_parents_are_those_of_version_two() -> None:
    assert [str(group) for group in control_groups(SERVICE)] == ["/system.slice/shallow-mirror.service", "/system.slice", "/"]
    assert [str(group) for group in control_groups("4:cpu:/old\n0::/\n")] == ["/"]
    assert control_groups("4:cpu,cpuacct:/old\n") == []


def write_limits(root: Path, groups: str, limits: Mapping[str, str]) -> None:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(groups, encoding="utf-8")
    for path, text in limits.items():
        folder = root / "sys" / "fs" / "cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("groups", "limits", "cores"),
    [
        ("0::/\n", {"": "100000 100000\n"}, 1),
        ("0::/\n", {"": "250000 100000\n"}, 3),
        ("0::/\n", {"": "10000 100000\n"}, 1),
        ("0::/\n", {"": "max 100000\n"}, 4),
        ("0::/a/b\n", {"a": "200000 100000\n", "a/b": "max 100000\n"}, 2),
        ("0::/elsewhere\n", {"": "300000 100000"}, 3),
        ("", {}, 4),
    ],
)
def test_the_lowest_limit_counts_rounded_up_and_never_below_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, limits: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3}, raising=False)
    write_limits(tmp_path, groups, limits)
    assert usable_cores(tmp_path) == cores


def test_this_machine_has_a_core() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
