"""The archive of a broker's classes: for which Java and which jars it is, and that brokers map it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shallow_mirror.local_kafka.jars import java_executable, kafka_jars
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.shared_classes import archive_of, options_with_archive


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SHALLOW_MIRROR_CACHE", str(tmp_path / "cache"))
    base = tmp_path / "jdk" / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()
    return str(tmp_path / "jdk" / "bin" / "java")


def test_other_jars_have_another_archive_and_none_is_used_before_it_is_written(java: str, tmp_path: Path) -> None:
    jar = tmp_path / "kafka.jar"
    jar.touch()
    archive = archive_of(java, [jar])
    assert archive is not None
    assert options_with_archive(java, [jar]) == ()
    archive.parent.mkdir(exist_ok=True)
    archive.touch()
    assert options_with_archive(java, [jar]) == (f"-XX:SharedArchiveFile={archive}",)
    jar.write_bytes(b"another one")
    assert options_with_archive(java, [jar]) == ()


def test_a_java_without_an_archive_of_its_own_uses_none(tmp_path: Path) -> None:
    assert archive_of(str(tmp_path / "bin" / "java"), []) is None
    assert options_with_archive(str(tmp_path / "bin" / "java"), []) == ()


@pytest.mark.brokers
def test_brokers_of_tests_map_the_archive(source_cluster: LocalKafka) -> None:
    archive = archive_of(java_executable(), kafka_jars(source_cluster.version))
    assert archive is not None
    assert str(archive) in Path(f"/proc/{source_cluster.pid}/maps").read_text(encoding="utf-8")
    assert "[cds]" not in source_cluster.log_tail()
