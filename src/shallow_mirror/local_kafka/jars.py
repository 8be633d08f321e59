"""Kafka and Delta jars, fetched once by the Ivy inside PySpark and kept in a cache folder. Runs on the driver."""

from __future__ import annotations

import fcntl
import functools
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from shallow_mirror.errors import ConfigError, MirrorError

KAFKA_VERSION = "4.4.0"
PREVIOUS_KAFKA_VERSION = "4.3.0"
OLD_KAFKA_VERSION = "3.9.2"
OLDEST_KAFKA_VERSION = "2.8.2"
"""With ZooKeeper; the oldest minor release that the mirror speaks to."""

_OLDEST_THAT_STARTS = (2, 4)
"""Before it there is no `kafka_2.13`."""

OLDEST_JAVA = 17

_MAVEN_IN_IVY = "http://ant.apache.org/ivy/maven"
"""The XML namespace of classifiers; nothing is fetched from there."""
_OUTPUT_TAIL_LINES = 30
_FETCH_TIMEOUT_S = 1200
_NOT_FOUND = re.compile(r":: (\S+#\S+;\S+): not found")
_log = logging.getLogger(__name__)


class JarFetchError(MirrorError):
    """Ivy did not fetch the jars; the end of its output is in the log. The cache holds nothing incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One artifact: organisation, name, version; `transitive`: with its dependencies.

    `classifier`: another file of it than the main jar; `extension`: of that file.
    """

    organisation: str
    name: str
    version: str
    transitive: bool = True
    classifier: str = ""
    extension: str = "jar"

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}{self.classifier and '-'}{self.classifier}.{self.extension}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """The jars of one cache folder. `name` changes whenever `modules` do, for a folder is never fetched again."""

    name: str
    modules: tuple[Module, ...]


_LOGGING = Module(organisation="org.apache.logging.log4j", name="log4j-slf4j-impl", version="2.25.4")


def kafka_jar_set(version: str) -> JarSet:
    """Return the jars of a broker: with ZooKeeper before Kafka 4, and a logging binding, without which it fails silently."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ConfigError(f"Kafka version {version!r}: expected three numbers, such as {KAFKA_VERSION} or {OLDEST_KAFKA_VERSION}")
    major, minor, _ = (int(number) for number in version.split("."))
    if (major, minor) < _OLDEST_THAT_STARTS:
        raise ConfigError(
            f"Kafka version {version}: local brokers are 2.4.0 or later; tested are {OLDEST_KAFKA_VERSION}, {OLD_KAFKA_VERSION}, "
            f"{PREVIOUS_KAFKA_VERSION} and {KAFKA_VERSION}, and a mirror needs Kafka 2.8 or later"
        )
    kafka = Module(organisation="org.apache.kafka", name="kafka_2.13", version=version)
    binding = _LOGGING if major >= 4 else Module(organisation="org.slf4j", name="slf4j-reload4j", version="1.7.36")
    return JarSet(name=f"kafka-{version}", modules=(kafka, binding))


DELTA_VERSION = "4.4.0"
DELTA_FOR_SPARK = ("4.0", "4.1", "4.2")
"""The Spark releases for which Delta has jars of this version."""


def delta_jar_set(spark: str) -> JarSet:
    """Return the jars of Delta for a release of Spark, such as 4.2.1. Raises ConfigError if Delta has none.

    They are those that delta-spark lists and PySpark does not ship; the rest (Hadoop, Jackson, Parquet, Scala, ...) is Spark's
    own.
    """
    release = ".".join(spark.split(".")[:2])
    if release not in DELTA_FOR_SPARK:
        raise ConfigError(
            f"Delta {DELTA_VERSION} has no jars for Spark {spark}, but for {', '.join(DELTA_FOR_SPARK)}: tables that Spark reads "
            "and writes (a catalog, tables_writer: spark) need one of these. Tables in a folder or an object store do not, with "
            "tables_writer: auto or deltalake"
        )
    return JarSet(
        name=f"delta-{DELTA_VERSION}-spark-{release}",
        modules=_delta_modules(f"delta-spark_{release}_2.13", DELTA_VERSION, "0.6.0"),
    )


def _delta_modules(spark_module: str, delta: str, unitycatalog: str) -> tuple[Module, ...]:
    names = (spark_module, "delta-storage", "delta-kernel-api", "delta-kernel-defaults", "delta-kernel-unitycatalog")
    own = [Module(organisation="io.delta", name=name, version=delta, transitive=False) for name in names]
    catalog = [
        Module(organisation="io.unitycatalog", name=name, version=unitycatalog, transitive=False)
        for name in ("unitycatalog-client", "unitycatalog-hadoop")
    ]
    return (*own, *catalog)


MIRROR_MAKER_VERSION = PREVIOUS_KAFKA_VERSION
"""Of the published figures. Its clients speak to brokers of any release here."""

CONNECT_JAR_SET = JarSet(
    name=f"connect-{MIRROR_MAKER_VERSION}",
    modules=(
        *(
            Module(organisation="org.apache.kafka", name=name, version=MIRROR_MAKER_VERSION)
            for name in ("connect-mirror", "connect-runtime")
        ),
        _LOGGING,
    ),
)
"""MirrorMaker 2 and the Kafka Connect that it runs in, for benchmarks."""

SPARK_KAFKA_JAR_SET = JarSet(
    name="spark-kafka-4.2.0",
    modules=(
        *(
            Module(organisation="org.apache.spark", name=f"{name}-kafka-0-10_2.13", version="4.2.0", transitive=False)
            for name in ("spark-sql", "spark-token-provider")
        ),
        Module(organisation="org.apache.kafka", name="kafka-clients", version="3.9.2", transitive=False),
        Module(organisation="org.apache.commons", name="commons-pool2", version="2.13.1", transitive=False),
    ),
)
"""Spark's own Kafka source and sink, for benchmarks, with the dependencies that PySpark does not ship."""


def kafka_jars(version: str = KAFKA_VERSION) -> list[Path]:
    """Return the jars of a broker; they are alone in their folder, so that `<folder>/*` is the class path."""
    return jars_of(kafka_jar_set(version))


def delta_jars() -> list[Path]:
    """Return the jars for `spark.jars`, beyond those inside the installed PySpark. Raises ConfigError as `delta_jar_set`."""
    return jars_of(delta_jar_set(importlib.metadata.version("pyspark")))


def cache_folder() -> Path:
    """Return `$SHALLOW_MIRROR_CACHE`, else `shallow-mirror` in the user's cache folder."""
    chosen = os.environ.get("SHALLOW_MIRROR_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser().absolute() if base else Path.home() / ".cache") / "shallow-mirror"


def jars_of(jar_set: JarSet, cache: Path | None = None) -> list[Path]:
    """Return the jars of a set, sorted; fetched on first use under a lock between processes (minutes, needs the network).

    Raises ConfigError (no Java, no PySpark) and JarFetchError; a folder in the cache is complete or absent.
    """
    cache = cache_folder() if cache is None else cache
    folder = cache / jar_set.name
    if not folder.is_dir():
        with _locked(cache / "jars.lock"):
            if not folder.is_dir():
                _fetch(jar_set, cache, folder)
    return sorted(folder.glob("*.jar"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("another process is fetching jars (%s is locked); waiting for it", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(jar_set: JarSet, cache: Path, folder: Path) -> None:
    java, ivy = java_executable(), ivy_jar()
    for leftover in cache.glob(f".{jar_set.name}-*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{jar_set.name}-", ignore_cleanup_errors=True) as work:
        fetched = Path(work) / "jars"
        fetched.mkdir()
        _log.info("fetching the jars of %s into %s, once; this can take a minute or two", jar_set.name, folder)
        _run_ivy(java, ivy, jar_set, cache / "ivy", Path(work), fetched)
        missing = [module.file_name for module in jar_set.modules if not (fetched / module.file_name).is_file()]
        if missing:
            raise JarFetchError(f"Ivy ended without an error but did not bring {', '.join(missing)} for {jar_set.name}")
        fetched.rename(folder)
    _log.info("%s: %d jars", folder, len(list(folder.glob("*.jar"))))


def _run_ivy(java: str, ivy: Path, jar_set: JarSet, ivy_cache: Path, work: Path, fetched: Path) -> None:
    """Resolve all modules at once, so that each artifact has one version. OSGi bundles are jars as well."""
    descriptor = work / "ivy.xml"
    descriptor.write_text(ivy_descriptor(jar_set), encoding="utf-8")
    command = [java, "-jar", str(ivy), "-ivy", str(descriptor), "-confs", "default", "-types", "jar", "bundle"]
    command += ["-cache", str(ivy_cache), "-retrieve", f"{fetched}/[artifact]-[revision](-[classifier]).[ext]"]
    ended = _ended(command, jar_set.name)
    if ended.returncode != 0:
        _show_tail(ended.stdout)
        not_found = sorted(set(_NOT_FOUND.findall(ended.stdout)))
        why = (
            f"Ivy found no {', '.join(not_found)}: there is no such version, or its repository is unreachable"
            if not_found
            else f"Ivy's exit code {ended.returncode}: check the network and try again"
        )
        raise JarFetchError(f"fetching the jars of {jar_set.name} failed. {why}; the end of Ivy's output is above")


def _ended(command: Sequence[str], what: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode("utf-8", "replace") if isinstance(error.stdout, bytes) else (error.stdout or "")
        _show_tail(output)
        raise JarFetchError(
            f"fetching the jars of {what} took longer than {_FETCH_TIMEOUT_S} s; the end of Ivy's output is above"
        ) from error


def ivy_descriptor(jar_set: JarSet) -> str:
    """Return an ivy.xml that requests the set's modules."""
    lines = [
        f"<dependency org={quoteattr(module.organisation)} name={quoteattr(module.name)} rev={quoteattr(module.version)}"
        f' conf="default-&gt;default" transitive="{str(module.transitive).lower()}">{_artifact(module)}</dependency>'
        for module in jar_set.modules
    ]
    return (
        f'<ivy-module version="2.0" xmlns:m={quoteattr(_MAVEN_IN_IVY)}>'
        '<info organisation="local" module="shallow-mirror-jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>\n"
    )


def _artifact(module: Module) -> str:
    if not module.classifier:
        return ""
    return (
        f'<artifact name={quoteattr(module.name)} type="jar" ext={quoteattr(module.extension)}'
        f" m:classifier={quoteattr(module.classifier)}/>"
    )


def _show_tail(output: str) -> None:
    """Log the end of the output: an error message is one line."""
    lines = [line for line in output.splitlines() if line.strip(" .")]
    _log.warning("the end of Ivy's output:\n%s", "\n".join(lines[-_OUTPUT_TAIL_LINES:]))


def ivy_jar() -> Path:
    """Return the Ivy jar of the installed PySpark, which is not imported for that."""
    spec = importlib.util.find_spec("pyspark")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "jars"
    jar_files = [] if folder is None else sorted(folder.glob("ivy-*.jar"))
    if not jar_files:
        raise ConfigError("local Kafka needs the jars inside PySpark: install shallow-mirror with its extra `local`")
    return jar_files[-1]


def java_executable() -> str:
    """Return `$JAVA_HOME/bin/java`, else `java` of the path. Raises ConfigError when it is missing or older than 17."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME is {home}, but there is no bin/java in it" if home else "`java` is not on the PATH"
        raise ConfigError(f"Java {OLDEST_JAVA} or newer is needed: {where}. Install a JDK or set JAVA_HOME.")
    major = java_major(java)
    if major < OLDEST_JAVA:
        raise ConfigError(f"Java {OLDEST_JAVA} or newer is needed: {java} is Java {major}. Install a newer JDK or set JAVA_HOME.")
    return java


@functools.cache
def java_major(java: str) -> int:
    """Return the feature number, such as 17; 8 for `1.8.0`. Raises ConfigError when the program is no working Java."""
    ended = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=60, check=False)
    output = (ended.stderr + ended.stdout).strip()
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    if ended.returncode != 0 or match is None:
        raise ConfigError(f"Java {OLDEST_JAVA} or newer is needed: `{java} -version` did not name a version: {output[-300:]}")
    return int(match.group(1))
