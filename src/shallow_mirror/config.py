"""The mirror file: every setting of one mirror, checked as a whole. Runs on the driver, in the planner process and in the cli.

A relative `tables` or `checkpoint` is relative to the folder of the mirror file. `${env:NAME}`, `${file:PATH}` and
`${secret:scope/key}` in client properties stay as written here; whoever connects resolves them.
"""

from __future__ import annotations

import difflib
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.checkpoints.schema import CATALOG, schema_of
from shallow_mirror.checkpoints.table_location import TableLocation, option_problems
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks import routing
from shallow_mirror.sinks.kafka.slots.quarantine_policy import QuarantineLimits
from shallow_mirror.sinks.kafka.slots.slot_time import DEFAULT_COMMIT_INTERVAL, commit_interval_problem, default_commit_interval
from shallow_mirror.types import IsolationLevel, LogAppendTimePolicy

DEFAULT_SLOT_BYTES = 32 << 20
DEFAULT_REQUEST_BYTES = 64 << 10

EARLIEST_TIMESTAMP, LATEST_TIMESTAMP = -2, -1
"""ListOffsets timestamps."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(millisecond|second|minute|hour|day|ms|s)s?")
_DURATION_UNITS_S = {"millisecond": 0.001, "ms": 0.001, "second": 1.0, "s": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_SCHEMA = re.compile(r"[^\s.`]+\.[^\s.`]+")

T = TypeVar("T")

StartRule = int | Mapping[int, int]
"""A ListOffsets timestamp, or an offset by partition."""


def _checked(parse: Callable[[T], object]) -> AfterValidator:
    """Keep the value as written; `parse` raises ValueError where it has no meaning."""

    def check(value: T) -> T:
        parse(value)
        return value

    return AfterValidator(check)


def _regular_expression(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error


def _not_internal(pattern: str) -> None:
    if pattern.startswith(routing.INTERNAL_PREFIX):
        raise ValueError(f"{pattern!r} matches internal topics only: topics that begin with __ are never mirrored")


def _target_name(template: str) -> None:
    problem = routing.template_problem(template)
    if problem is not None:
        raise ValueError(problem)


def _as_text(value: object) -> object:
    """YAML reads an unquoted time as a datetime."""
    return value.isoformat() if isinstance(value, (date, datetime)) else value


def _number_as_text(value: object) -> object:
    """A duration without unit is refused as one, not as a number."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _as_location(tables: object) -> object:
    """`{schema: catalog.schema}` as one text."""
    if not isinstance(tables, Mapping):
        return tables
    if set(tables) != {"schema"} or not (isinstance(tables["schema"], str) and _SCHEMA.fullmatch(tables["schema"])):
        raise ValueError(f"{dict(tables)} is not a place for tables: give a folder, a URI, or {{schema: catalog.schema}}")
    return f"{CATALOG}{tables['schema']}"


_TABLES_IN_JSON_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "object", "properties": {"schema": {"type": "string"}}, "required": ["schema"], "additionalProperties": False},
    ]
}


def parse_start(start: str) -> int:
    """ListOffsets timestamp: -2 earliest, -1 latest, or milliseconds since the epoch."""
    if start in ("earliest", "latest"):
        return EARLIEST_TIMESTAMP if start == "earliest" else LATEST_TIMESTAMP
    try:
        at = datetime.fromisoformat(start)
    except ValueError as error:
        raise ValueError(f"{start!r} is neither earliest, latest nor an ISO-8601 time") from error
    if at.tzinfo is None:
        raise ValueError(
            f"{start!r} has no time zone: write {start}Z for UTC" if "T" in start else f"{start!r} has no time of day"
        )
    return int(at.timestamp() * 1000)


def parse_duration(text: str) -> float:
    """Seconds of "2 seconds", "500 ms", "1 minute", "30 days"."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as '2 seconds', '500 ms' or '1 minute'")
    return float(match[1]) * _DURATION_UNITS_S[match[2]]


def _topic_start(start: object) -> object:
    """A start as of `read.start`, or an offset by partition."""
    start = _as_text(start)
    if isinstance(start, str):
        parse_start(start)
        return start
    offsets = {int(key): offset for key, offset in start.items() if str(key).isdecimal()} if isinstance(start, Mapping) else {}
    is_right = isinstance(start, Mapping) and len(offsets) == len(start) > 0
    if not is_right or not all(type(offset) is int and offset >= 0 for offset in offsets.values()):
        raise ValueError(
            f"{start!r} is none of earliest, latest, an ISO-8601 time with zone, and offsets such as {{0: 1200, 1: 3400}}"
        )
    return offsets


def parse_interval(interval: str) -> float:
    """Seconds, more than none."""
    seconds = parse_duration(interval)
    if seconds <= 0:
        raise ValueError(f"{interval!r} is no pause: give a duration such as '15 seconds'")
    return seconds


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=120)]
_NumberAsText = BeforeValidator(_number_as_text)
_Pattern = Annotated[str, _checked(_regular_expression)]
_IsolationLevel = Annotated[IsolationLevel, Field(strict=False)]
_LogAppendTime = Annotated[LogAppendTimePolicy, Field(strict=False)]


_TopicStart = Annotated[str | dict[int, int], BeforeValidator(_topic_start)]
_BytesPerSecond = Annotated[int, Field(ge=1 << 10, le=1 << 40)]


class ClusterSettings(_Group):
    alias: _Name
    properties: dict[str, str | int | float | bool] = Field(alias="client", repr=False)

    @property
    def client(self) -> ClientConfig:
        """Raises ConfigError; never after `MirrorConfig.load`."""
        return ClientConfig.from_properties(self.properties, where="client")


def _off(setting: object) -> object:
    """YAML reads `off` as false."""
    return "off" if setting is False else setting


class TopicSettings(_Group):
    include: list[Annotated[_Pattern, _checked(_not_internal)]] = Field(min_length=1)
    exclude: list[_Pattern] = []
    target_name: Annotated[str, _checked(_target_name)] = "{topic}"
    create: bool = True
    replication_factor: int | None = Field(default=None, ge=1, le=32767)
    configs: Annotated[Literal["create", "sync", "off"], BeforeValidator(_off)] = "create"
    discovery: Annotated[str, _NumberAsText, _checked(parse_duration)] = "30 seconds"
    start: dict[_Pattern, _TopicStart] = {}
    bytes_per_second: dict[_Pattern, _BytesPerSecond] = {}

    @property
    def start_rules(self) -> tuple[tuple[str, StartRule], ...]:
        """Patterns and what they begin with, in the order of the file."""
        return tuple((one, parse_start(start) if isinstance(start, str) else start) for one, start in self.start.items())

    @property
    def discovery_s(self) -> float:
        return parse_duration(self.discovery)

    def is_included(self, topic: str) -> bool:
        return routing.is_included(topic, self.include, self.exclude)


class ReadSettings(_Group):
    start: Annotated[str, BeforeValidator(_as_text), _checked(parse_start)] = "earliest"
    isolation_level: _IsolationLevel = IsolationLevel.READ_COMMITTED
    transfer: Literal["direct", "through-spark"] = "direct"
    on_data_loss: Literal["stop", "continue"] = "stop"
    log_append_time: _LogAppendTime = LogAppendTimePolicy.KEEP
    micro_batch_bytes: int = Field(default=1 << 30, ge=1 << 20, le=1 << 40)
    fetch_bytes: int = Field(default=16 << 20, ge=64 << 10, le=1 << 30)
    max_segments: int = Field(default=200_000, ge=1, le=10_000_000)

    @property
    def start_timestamp_ms(self) -> int:
        return parse_start(self.start)


class WriteSettings(_Group):
    slots: int = Field(default=8, ge=1, le=1000)
    slot_bytes: int = Field(default=DEFAULT_SLOT_BYTES, ge=1 << 10, le=1 << 40)
    request_bytes: int = Field(default=DEFAULT_REQUEST_BYTES, ge=1, le=1 << 30)
    transaction_timeout_ms: int = Field(default=300_000, ge=10_000, le=900_000)
    commit_interval: Annotated[str, _NumberAsText, _checked(parse_interval)] = DEFAULT_COMMIT_INTERVAL
    in_flight_requests: int = Field(default=5, ge=1, le=16)
    in_flight_bytes: int = Field(default=4 << 20, ge=64 << 10, le=1 << 30)
    bytes_per_second: _BytesPerSecond | None = None
    coalesce_bytes: int | None = Field(default=None, ge=1 << 10, le=64 << 20)
    on_refused: Literal["stop", "quarantine"] = "stop"
    max_quarantined_batches: int = Field(default=100, ge=1, le=1_000_000)
    max_quarantined_bytes: int = Field(default=16 << 20, ge=1 << 10, le=256 << 20)

    @property
    def commit_interval_s(self) -> float:
        return parse_interval(self.commit_interval)

    @property
    def quarantine_limits(self) -> QuarantineLimits | None:
        """None: a batch that cannot be copied stops the mirror."""
        if self.on_refused == "stop":
            return None
        return QuarantineLimits(batches=self.max_quarantined_batches, size_bytes=self.max_quarantined_bytes)


def parse_sync(sync: str) -> float | None:
    """Seconds between two looks at the groups; None for "off"."""
    return None if sync == "off" else parse_duration(sync)


class GroupSettings(_Group):
    """Consumer groups. `sync`: how often a running mirror brings the target's in step. `keep`: how far back their positions are
    known."""

    sync: Annotated[str, BeforeValidator(_off), _NumberAsText, _checked(parse_sync)] = "off"
    keep: Annotated[str, _NumberAsText, _checked(parse_interval)] = "30 days"
    include: list[_Pattern] = Field(default=[".*"], min_length=1)
    exclude: list[_Pattern] = []

    @property
    def sync_s(self) -> float | None:
        return parse_sync(self.sync)

    @property
    def keep_s(self) -> float:
        return parse_interval(self.keep)

    def is_included(self, group: str) -> bool:
        if any(re.fullmatch(one, group) for one in self.exclude):
            return False
        return any(re.fullmatch(one, group) for one in self.include)


class MetricsSettings(_Group):
    """`port` None: none are served. `max_topics`: topics that have a lag of their own; the others are one."""

    port: int | None = Field(default=None, ge=1, le=65535)
    host: str = Field(default="127.0.0.1", min_length=1)
    max_topics: int = Field(default=100, ge=0, le=10_000)
    lag_interval: Annotated[str, _NumberAsText, _checked(parse_interval)] = "15 seconds"

    @property
    def lag_interval_s(self) -> float:
        return parse_interval(self.lag_interval)


class StorageSettings(_Group):
    """The store that holds `tables`. `options`: deltalake's storage options; secrets by reference only."""

    options: dict[str, str | int | float | bool] = Field(default={}, repr=False)


class MirrorConfig(_Group):
    """All of it, picklable. `tables` and `checkpoint` are absolute once loaded; a schema is `catalog:<catalog>.<schema>`."""

    mirror: _Name
    source: ClusterSettings
    target: ClusterSettings
    topics: TopicSettings
    read: ReadSettings = ReadSettings()
    write: WriteSettings = WriteSettings()
    groups: GroupSettings = GroupSettings()
    metrics: MetricsSettings = MetricsSettings()
    tables: Annotated[str, Field(min_length=1), BeforeValidator(_as_location), WithJsonSchema(_TABLES_IN_JSON_SCHEMA)]
    tables_writer: Literal["auto", "deltalake", "spark"] = "auto"
    on_error: Literal["stop", "isolate"] = "stop"
    storage: StorageSettings = StorageSettings()
    checkpoint: str = ""
    trigger: Annotated[str, _NumberAsText, _checked(parse_duration)] = "2 seconds"

    @property
    def source_cluster_name(self) -> str:
        """For people, in messages."""
        return f"source cluster {self.source.alias}"

    @property
    def target_cluster_name(self) -> str:
        return f"target cluster {self.target.alias}"

    @property
    def trigger_s(self) -> float:
        return parse_duration(self.trigger)

    @property
    def table_location(self) -> TableLocation:
        """Return where the tables are with the options of their store, for everything that opens one."""
        return TableLocation(self.tables, {name: _option_text(value) for name, value in self.storage.options.items()})

    @classmethod
    def load(cls, path: str | Path) -> MirrorConfig:
        """Raises ConfigError with every problem of the file."""
        path = Path(path)
        try:
            document = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the mirror file {path}: {error}") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {_yaml_problem(error)}") from None
        return cls.from_document(document, folder=path.resolve().parent)

    @classmethod
    def from_document(cls, document: object, *, folder: Path) -> MirrorConfig:
        """`folder` is what relative paths are relative to. Raises ConfigError with every problem."""
        if not isinstance(document, dict):
            raise ConfigError("the mirror file holds no settings: it must be a YAML mapping that begins with 'mirror: <name>'")
        problems: list[str] = []
        config: MirrorConfig | None = None
        try:
            config = cls.model_validate(document)
        except ValidationError as error:
            problems += [_sentence(one) for one in error.errors(include_url=False, include_context=True)]
        problems += _client_problems(document)
        problems += _storage_problems(document)
        if config is not None and config.source.alias == config.target.alias:
            problems.append(f"source.alias and target.alias are both {config.source.alias!r}: give the clusters two names")
        if config is not None and schema_of(config.tables) is not None:
            problems += _catalog_problems(config)
        if config is not None:
            config, interval_problems = _with_commit_interval(config)
            problems += interval_problems
        if problems or config is None:
            raise ConfigError(problems)
        tables = _absolute(config.tables, folder)
        checkpoint = _absolute(config.checkpoint, folder) if config.checkpoint else f"{tables.rstrip('/')}/_spark"
        return config.model_copy(update={"tables": tables, "checkpoint": checkpoint})

    @property
    def spark_log(self) -> Path:
        """Of a local session: beside the tables or the checkpoint, whichever is in a folder of this machine."""
        if self.tables.startswith("/"):
            return Path(self.tables) / "_spark.log"
        if self.checkpoint.startswith("/"):
            return Path(f"{self.checkpoint}.log")
        return Path(tempfile.gettempdir()) / f"{self.mirror}.spark.log"

    def to_json(self) -> str:
        """The settings as written, references unresolved; `from_json` reads it in another process."""
        return self.model_dump_json(by_alias=True)

    @classmethod
    def from_json(cls, text: str) -> MirrorConfig:
        return cls.model_validate_json(text)


class _UniqueKeys(yaml.SafeLoader):
    """YAML's own loader takes the last of several equal keys without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        known: set[str] = set()
        for key, _ in node.value:
            if key.value in known and isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "the same key for the second time", key.start_mark)
            known.add(str(key.value))
        return super().construct_mapping(node, deep)


def _yaml_problem(error: yaml.YAMLError) -> str:
    """Without the line itself, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be read"
    return problem if mark is None else f"{problem} in line {mark.line + 1}, column {mark.column + 1}"


def _absolute(location: str, folder: Path) -> str:
    if location.startswith("file://"):
        location = location.removeprefix("file://")
    return (
        location
        if _URI.match(location) or schema_of(location) is not None
        else str((folder / Path(location).expanduser()).resolve())
    )


def _with_commit_interval(config: MirrorConfig) -> tuple[MirrorConfig, list[str]]:
    """The default fits itself to a short transaction timeout; what the file says is taken as it is, or refused."""
    write = config.write
    if "commit_interval" not in write.model_fields_set:
        interval = default_commit_interval(write.transaction_timeout_ms)
        return config.model_copy(update={"write": write.model_copy(update={"commit_interval": interval})}), []
    problem = commit_interval_problem(write.commit_interval_s, write.transaction_timeout_ms)
    return config, [] if problem is None else [f"write.commit_interval: {problem}"]


def _catalog_problems(config: MirrorConfig) -> list[str]:
    problems = []
    if config.tables_writer == "deltalake":
        problems.append("tables_writer: deltalake cannot write to a catalog: use tables_writer: auto or spark")
    if not config.checkpoint:
        problems.append("checkpoint: is missing; tables in a catalog have no folder that could hold it")
    return problems


def _option_text(value: object) -> str:
    """YAML's true is not Python's True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _storage_problems(document: Mapping[str, Any]) -> list[str]:
    group = document.get("storage")
    options = group.get("options") if isinstance(group, Mapping) else None
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        return []
    return [f"storage.options.{problem}" for problem in option_problems(options)]


def _client_problems(document: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    for side in ("source", "target"):
        group = document.get(side)
        client = group.get("client") if isinstance(group, Mapping) else None
        if isinstance(client, Mapping) and all(isinstance(key, str) for key in client):
            try:
                made = ClientConfig.from_properties(client, where=f"{side}.client")
            except ConfigError as error:
                problems += error.problems
            else:
                problems += [f"{side}.client.{problem}" for problem in _key_file_problems(made)]
    return problems


def _key_file_problems(client: ClientConfig) -> Sequence[str]:
    if not client.uses_tls:
        return ()
    from shallow_mirror.broker.auth.tls_settings import TlsSettings

    try:
        TlsSettings.of(client).context()
    except ConfigError as error:
        return error.problems
    return ()


def _group_at(path: tuple[int | str, ...]) -> type[BaseModel] | None:
    group: Any = MirrorConfig
    for key in path:
        field = group.model_fields.get(key)
        group = None if field is None else field.annotation
        if not (isinstance(group, type) and issubclass(group, BaseModel)):
            return None
    return group  # type: ignore[no-any-return]


def _sentence(error: Any) -> str:
    """One problem of pydantic's list, in the words of the mirror file."""
    path = tuple(error["loc"])
    where = ".".join(str(key) for key in path)
    if error["type"] == "extra_forbidden":
        group = _group_at(path[:-1])
        known = [] if group is None else [field.alias or name for name, field in group.model_fields.items()]
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
        return f"{where}: unknown key; " + (f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}")
    if error["type"] == "too_short":
        return f"{where}: an empty list: at least one is needed"
    if error["type"] == "missing":
        return f"{where}: is missing"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if error["type"] == "value_error":
        return f"{where}: {message}"
    shown = (
        "" if {"client", "options"}.intersection(path) or isinstance(error["input"], dict | list) else f", not {error['input']!r}"
    )
    return f"{where}: {message}{shown}"


def json_schema() -> str:
    """What `conf/mirror.schema.json` holds, for editors."""
    return json.dumps(MirrorConfig.model_json_schema(by_alias=True), indent=2, sort_keys=True) + "\n"


def write_json_schema(path: Path) -> None:
    path.write_text(json_schema(), encoding="utf-8")
