"""The settings of a DataFrame sink: arguments of a Python class, checked like a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.config.config_file import absolute
from shallow_mirror.config.problems import validation_problem
from shallow_mirror.config.sections import MetricsSettings
from shallow_mirror.config.values import Interval, Name, Section, Tables, parse_interval
from shallow_mirror.errors import ConfigError
from shallow_mirror.wire import Codec

LEVELS: Mapping[str, tuple[int, int]] = {"gzip": (0, 9), "lz4": (0, 16), "zstd": (-7, 22)}
"""Least and most compression level, by codec; the others have none."""

CodecName = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class SinkConfig(Section):
    """All settings of a sink; picklable. `tables` is absolute."""

    name: Annotated[Name, Field(description="Prefix of transactional ids, and of the groups of receipts, on the target.")]
    properties: Annotated[
        dict[str, str | int | float | bool], Field(alias="client", repr=False, description="librdkafka property names.")
    ]
    tables: Annotated[Tables, Field(description="A folder, a URI, or {schema: catalog.schema}: the table `written_records`.")]
    tables_writer: Annotated[Literal["auto", "deltalake", "spark"], Field(description="The library that writes it.")] = "auto"
    storage_options: Annotated[
        dict[str, str], Field(repr=False, description="Options of the object store of `tables`, as in a mirror file.")
    ] = Field(default={})
    topic: Annotated[str | None, Field(min_length=1, description="Of all rows; None: the column `topic` names it.")] = None
    codec: Annotated[CodecName, Field(description="Compression of batches.")] = "lz4"
    level: Annotated[int | None, Field(description="Of gzip, lz4 or zstd; None: the default of the codec.")] = None
    batch_bytes: Annotated[
        int, Field(ge=1 << 10, le=64 << 20, description="The most bytes of records in a batch, before they are compressed.")
    ] = 1 << 20
    window_bytes: Annotated[
        int, Field(ge=1 << 16, le=512 << 20, description="Rows that a task encodes at once. It holds about six times as much.")
    ] = 16 << 20
    slots: Annotated[
        int, Field(ge=1, le=1000, description="The most tasks, and so Kafka transactions, of a micro-batch; at least the cores.")
    ] = 16
    transaction_timeout_ms: Annotated[
        int, Field(ge=10_000, le=3_600_000, description="A micro-batch has to be written and decided within it.")
    ] = 300_000
    in_flight_requests: Annotated[int, Field(ge=1, le=10_000, description="Produce requests in flight, by leader and task.")] = (
        100
    )
    in_flight_bytes: Annotated[int, Field(ge=64 << 10, le=1 << 30, description="Their bytes.")] = 32 << 20
    bytes_per_second: Annotated[
        int | None,
        Field(ge=1 << 10, le=1 << 40, description="The most bytes that all tasks together send; None: any."),
    ] = None
    retry_for: Annotated[
        Interval, Field(description="How long a micro-batch is tried again after errors that may pass, such as a lost broker.")
    ] = "10 minutes"
    follows: Annotated[
        str | None, Field(description="The id of the query that this one replaces, if its checkpoint is lost.")
    ] = None
    lost_run: Annotated[
        str | None,
        Field(description="The id of the run that has written what these older tables lack, if the newest tables are lost."),
    ] = None
    on_doubt: Annotated[
        Literal["stop", "skip", "repeat"],
        Field(description="What becomes of a micro-batch of which a part is committed, and it is not known which."),
    ] = "stop"

    metrics: Annotated[MetricsSettings, Field(description="Where the driver serves Prometheus metrics: port and host.")] = (
        MetricsSettings()
    )

    @property
    def client(self) -> ClientConfig:
        return ClientConfig.from_properties(self.properties)

    @property
    def table_location(self) -> TableLocation:
        return TableLocation(self.tables, self.storage_options)

    @property
    def retry_for_s(self) -> float:
        return parse_interval(self.retry_for)

    @property
    def codec_id(self) -> Codec:
        return Codec[self.codec.upper()]

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> SinkConfig:
        """Return the settings of keyword arguments. Raises ConfigError with every problem."""
        problems: list[str] = []
        config: SinkConfig | None = None
        try:
            config = cls.model_validate(dict(arguments))
        except ValidationError as invalid:
            problems += [validation_problem(error, cls) for error in invalid.errors(include_url=False, include_context=True)]
        client = arguments.get("client")
        if isinstance(client, Mapping) and all(isinstance(name, str) for name in client):
            try:
                ClientConfig.from_properties(client)
            except ConfigError as error:
                problems += error.problems
        if config is not None and config.level is not None:
            least, most = LEVELS.get(config.codec, (1, 0))
            if not least <= config.level <= most:
                allowed = f"from {least} to {most}" if config.codec in LEVELS else "left out"
                problems.append(f"level: {config.level} for codec {config.codec}, which has to be {allowed}")
        if problems or config is None:
            raise ConfigError(problems)
        return config.model_copy(update={"tables": absolute(config.tables, Path.cwd())})
