from __future__ import annotations

import os
import re
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka import jars
from shallow_mirror.local_kafka.jars import JarFetchError, JarSet, Module, cache_folder, ivy_descriptor, jars_of, kafka_jar_set

ONE_JAR = JarSet(name="one-1.0", modules=(Module(organisation="org.example", name="one", version="1.0"),))


def write_java(folder: Path, body: str, version: str = "17.0.1") -> None:
    """Write a stand-in for `java` that prints its version, and runs `body` in place of Ivy."""
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"""#!/bin/sh
if [ "$1" = "-version" ]; then echo 'openjdk version "{version}"' >&2; exit 0; fi
for argument; do retrieve=$argument; done
folder=$(dirname "$retrieve")
{body}
""")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "a java home"
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def test_the_cache_folder_is_the_chosen_one_or_lies_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHALLOW_MIRROR_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.delenv("SHALLOW_MIRROR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "shallow-mirror"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "shallow-mirror"


def test_every_kafka_set_has_the_logging_binding_of_its_time() -> None:
    assert [module.name for module in kafka_jar_set("4.3.0").modules] == ["kafka_2.13", "log4j-slf4j-impl"]
    assert [module.name for module in kafka_jar_set("3.9.2").modules] == ["kafka_2.13", "slf4j-reload4j"]


@pytest.mark.parametrize("version", ["", "4", "4.3", "latest", "../4.3.0", "4.3.0\n"])
def test_a_kafka_version_is_three_numbers(version: str) -> None:
    with pytest.raises(ConfigError, match="expected three numbers"):
        kafka_jar_set(version)


@pytest.mark.parametrize("version", ["2.0.1", "2.3.1", "0.11.0"])
def test_a_kafka_that_has_no_such_jars_is_refused_before_anything_is_fetched(version: str) -> None:
    with pytest.raises(
        ConfigError, match=r"2\.4\.0 or later; tested are 2\.8\.2, 3\.9\.2, 4\.3\.0 and 4\.4\.0, .* Kafka 2\.8 or later"
    ):
        kafka_jar_set(version)
    assert kafka_jar_set("2.4.0").name == "kafka-2.4.0"


def test_the_descriptor_names_every_module_and_whether_its_dependencies_come_along() -> None:
    text = ivy_descriptor(jars.delta_jar_set("4.2.1"))
    assert text.count("<dependency ") == 7
    assert text.count('transitive="false"') == 7
    plain = '<dependency org="org.example" name="one" rev="1.0" conf="default-&gt;default" transitive="true">'
    assert f"{plain}</dependency>" in ivy_descriptor(ONE_JAR)
    other = replace(ONE_JAR, modules=(replace(ONE_JAR.modules[0], classifier="test"),))
    assert f'{plain}<artifact name="one" type="jar" ext="jar" m:classifier="test"/></dependency>' in ivy_descriptor(other)
    assert other.modules[0].file_name == "one-1.0-test.jar"


def test_jars_are_fetched_once(tmp_path: Path, java_home: Path) -> None:
    write_java(java_home, 'echo run >> "$folder/../../runs"; touch "$folder/one-1.0.jar" "$folder/another-2.jar"')
    cache = tmp_path / "cache"
    first, second = jars_of(ONE_JAR, cache), jars_of(ONE_JAR, cache)
    assert first == second == [cache / "one-1.0" / "another-2.jar", cache / "one-1.0" / "one-1.0.jar"]
    assert (cache / "runs").read_text() == "run\n"
    assert sorted(entry.name for entry in cache.iterdir()) == ["jars.lock", "one-1.0", "runs"]


@pytest.mark.slow
def test_two_who_fetch_at_the_same_time_fetch_once(tmp_path: Path, java_home: Path) -> None:
    write_java(java_home, 'echo run >> "$folder/../../runs"; sleep 0.3; touch "$folder/one-1.0.jar"')
    cache = tmp_path / "cache"
    threads = [threading.Thread(target=jars_of, args=(ONE_JAR, cache)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (cache / "runs").read_text() == "run\n"


def test_a_failed_fetch_shows_the_end_of_ivys_output_and_leaves_nothing_half_done(
    tmp_path: Path, java_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_java(java_home, 'touch "$folder/one-1.0.jar"; echo "... (3kB)"; echo "SERVER ERROR: Bad Gateway"; exit 1')
    cache = tmp_path / "cache"
    with pytest.raises(JarFetchError, match=r"^fetching the jars of one-1\.0 failed\. Ivy's exit code 1: check the network .*$"):
        jars_of(ONE_JAR, cache)
    assert "SERVER ERROR: Bad Gateway" in caplog.text
    assert [entry.name for entry in cache.iterdir()] == ["jars.lock"]


def test_a_version_that_is_nowhere_is_named_in_one_line(tmp_path: Path, java_home: Path) -> None:
    line = 'echo "\t\t:: org.example#one;1.0: not found"'
    write_java(java_home, f"{line}; {line}; exit 1")
    with pytest.raises(JarFetchError, match=r"^.* Ivy found no org\.example#one;1\.0: there is no such version, or .*above$"):
        jars_of(ONE_JAR, tmp_path / "cache")


def test_a_fetch_which_does_not_bring_the_module_itself_has_failed(tmp_path: Path, java_home: Path) -> None:
    write_java(java_home, 'touch "$folder/another-2.jar"')
    with pytest.raises(JarFetchError, match=r"did not bring one-1\.0\.jar"):
        jars_of(ONE_JAR, tmp_path / "cache")
    assert not (tmp_path / "cache" / "one-1.0").exists()


def test_what_a_killed_fetch_left_is_removed_by_the_next(tmp_path: Path, java_home: Path) -> None:
    write_java(java_home, 'touch "$folder/one-1.0.jar"')
    leftover = tmp_path / "cache" / ".one-1.0-killed" / "jars"
    leftover.mkdir(parents=True)
    jars_of(ONE_JAR, tmp_path / "cache")
    assert not leftover.parent.exists()


def test_without_java_the_error_says_where_it_was_looked_for(
    tmp_path: Path, java_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"JAVA_HOME is .*a java home, but there is no bin/java"):
        jars.java_executable()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="`java` is not on the PATH"):
        jars.java_executable()


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.2", 11), ("16-ea", 16)])
def test_a_java_that_is_too_old_is_named(java_home: Path, version: str, major: int) -> None:
    write_java(java_home, "", version)
    with pytest.raises(ConfigError, match=f"is Java {major}\\."):
        jars.java_executable()


def test_a_java_which_is_none_is_an_error_of_the_configuration(java_home: Path) -> None:
    write_java(java_home, "")
    (java_home / "bin" / "java").write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime' >&2; exit 1\n")
    with pytest.raises(ConfigError, match="Unable to locate a Java Runtime"):
        jars.java_executable()


def test_java_21_is_new_enough(java_home: Path) -> None:
    write_java(java_home, "", "21")
    assert jars.java_executable() == str(java_home / "bin" / "java")


def test_ivy_is_found_inside_pyspark() -> None:
    assert jars.ivy_jar().is_file()
    assert "pyspark" in jars.ivy_jar().parts


def test_no_registry_is_named_in_the_code() -> None:
    named = re.findall(r"http[^\"\s]*", Path(os.path.realpath(jars.__file__)).read_text())
    assert named == [jars._MAVEN_IN_IVY]


def test_a_spark_for_which_delta_has_no_jars_is_refused_with_what_works_there() -> None:
    assert "delta-spark_4.0_2.13" in ivy_descriptor(jars.delta_jar_set("4.0.5"))
    with pytest.raises(
        ConfigError, match=r"no jars for Spark 4\.3\.0, but for 4\.0, 4\.1, 4\.2: .*tables_writer: auto or deltalake"
    ):
        jars.delta_jar_set("4.3.0")
