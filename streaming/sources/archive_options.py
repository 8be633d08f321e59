"""Options of `kafka-archive`, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.record_reader import MOST_OPENED_BYTES
from shallow_mirror.archive_reading.scan_plan import PART_BYTES
from shallow_mirror.checkpoints.rows import ARCHIVE_SEGMENTS_TABLE
from shallow_mirror.checkpoints.tables import TableLocation, ms_of
from shallow_mirror.config.values import parse_duration
from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store import ObjectStore, option_problems
from shallow_mirror.streaming.sources.option_texts import OptionTexts

if TYPE_CHECKING:
    from shallow_mirror.config import ArchiveConfig

_STORAGE_PREFIX = "storage."
_NAMES = (
    "archive",
    "tables",
    "archiveSegments",
    "objects",
    "records",
    "includeAborted",
    "partitionBytes",
    "maxOpenedBytes",
    "maxTimestampDisorder",
    "subscribe",
    "partitions",
    "startingOffset",
    "endingOffset",
    "startingTimestamp",
    "endingTimestamp",
    "pushFilters",
    "lineage",
    "topicIds",
    "asOf",
)
_ALL = "all"
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """`storage_options` hold references, not secrets. `lineage`: as of `plan_scan`."""

    tables: TableLocation
    objects: str
    storage_options: Mapping[str, str]
    is_records: bool
    includes_aborted: bool
    part_bytes: int
    most_opened_bytes: int
    bounds: ReadBounds
    pushes_filters: bool
    lineage: int | None
    as_of_ms: int | None
    """The state at this time is read; None: the newest."""
    topic_ids: frozenset[str]
    """Of topics of which another incarnation is read than that of `as_of_ms`, or the newest."""
    reads_all_topic_ids: bool

    def open_store(self) -> ObjectStore:
        return ObjectStore.open(self.objects, self.storage_options)


def is_record_option(options: Mapping[str, str]) -> bool:
    """Return whether a row is a record. Raises ConfigError for a value that is neither true nor false."""
    parser = _ArchiveParser(options)
    is_records = parser.boolean("records", "false")
    if parser.problems:
        raise ConfigError(parser.problems)
    return is_records


def parse_archive_options(options: Mapping[str, str]) -> ArchiveOptions:
    """Return the checked options; reads the archive file if they name one. Raises ConfigError with every problem."""
    return _ArchiveParser(options).parse()


class _ArchiveParser(OptionTexts):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options, _NAMES, _STORAGE_PREFIX)

    def parse(self) -> ArchiveOptions:
        self.check_names()
        storage = self.prefixed()
        self.problems += [f"{_STORAGE_PREFIX}{problem}" for problem in option_problems(storage)]
        segments = self.text("archiveSegments")
        tables, objects = (self._options.get(name, "") for name in ("tables", "objects"))
        config = self._archive_file(bool(storage))
        if config is not None:
            tables, objects, storage = config.tables, config.objects, config.storage_options
        elif "archive" not in self._options:
            expected = ["objects"] if segments else ["tables", "objects"]
            self.problems += [f"{name}: is missing" for name in expected if not self._options.get(name)]
            if segments and tables:
                self.problems.append("archiveSegments: give either this or `tables`")
        topic_ids = self._list("topicIds")
        parsed = ArchiveOptions(
            tables=TableLocation(segments, storage, ARCHIVE_SEGMENTS_TABLE) if segments else TableLocation(tables, storage),
            objects=objects,
            storage_options=storage,
            is_records=self.boolean("records", "false"),
            includes_aborted=self.boolean("includeAborted", "false"),
            part_bytes=self._bytes("partitionBytes", PART_BYTES),
            most_opened_bytes=self._bytes("maxOpenedBytes", MOST_OPENED_BYTES),
            bounds=self._bounds(),
            pushes_filters=self.boolean("pushFilters", "false"),
            as_of_ms=self._time("asOf"),
            topic_ids=frozenset(topic_ids or ()) if topic_ids != [_ALL] else frozenset(),
            reads_all_topic_ids=topic_ids == [_ALL],
            lineage=None if (number := self.text("lineage")) is None else self._whole("lineage", number),
        )
        self._check_table_place("tables", tables)
        self._check_table_place("archiveSegments", segments or "")
        self._check_objects(objects, storage)
        if self.problems:
            raise ConfigError(self.problems)
        return parsed

    def _check_table_place(self, name: str, place: str) -> None:
        if TableLocation(place).is_read_by_spark:
            self.problems.append(
                f"{name}: {place} can be read by Spark only, and a data source has no session: for tables in a catalog use "
                "spark.read.options(**kafka_archive_options(spark, ARCHIVE_FILE)); otherwise give a folder or a URI"
            )
        elif place and not place.startswith("/") and "://" not in place:
            self.problems.append(f"{name}: {place}: not an absolute folder or a URI")

    def _check_objects(self, objects: str, storage: Mapping[str, str]) -> None:
        if objects:
            try:
                ObjectStore.open(objects, storage)
            except ConfigError as error:
                self.problems += [f"objects: {problem}" for problem in error.problems]

    def _archive_file(self, has_storage: bool) -> ArchiveConfig | None:
        path = self.text("archive")
        if path is None:
            return None
        places = ("tables", "archiveSegments", "objects")
        given = [name for name in places if name.lower() in self._options] + ["storage.*"] * has_storage
        if given:
            self.problems.append(f"{', '.join(given)}: are in the archive file; give either `archive` or these")
        from shallow_mirror.config import ArchiveConfig

        try:
            return ArchiveConfig.load(path)
        except ConfigError as error:
            self.problems += [f"archive: {path}: {problem}" for problem in error.problems]
            return None

    def _bounds(self) -> ReadBounds:
        bounds = ReadBounds(disorder_ms=self._duration("maxTimestampDisorder"))
        topics, partitions = self._list("subscribe"), self._list("partitions")
        if topics is not None:
            bounds = bounds.of_topics(frozenset(topics))
        if partitions is not None:
            bounds = bounds.of_partitions(frozenset(self._whole("partitions", text) for text in partitions))
        if (start := self.text("startingOffset")) is not None:
            bounds = bounds.from_offset(self._whole("startingOffset", start))
        if (end := self.text("endingOffset")) is not None:
            bounds = bounds.up_to_offset(self._whole("endingOffset", end))
        if (start_ms := self._time("startingTimestamp")) is not None:
            bounds = bounds.from_time(start_ms)
        if (end_ms := self._time("endingTimestamp")) is not None:
            bounds = bounds.up_to_time(end_ms - 1)
        return bounds

    def _list(self, name: str) -> list[str] | None:
        text = self.text(name)
        if text is None:
            return None
        members = [member.strip() for member in text.split(",") if member.strip()]
        if not members:
            self.problems.append(f"{name}: is empty")
        return members

    def _whole(self, name: str, text: str) -> int:
        if not text.isdecimal():
            self.problems.append(f"{name}: {text!r} is not a whole number")
            return 0
        return int(text)

    def _time(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if text.isdecimal():
            return int(text)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            self.problems.append(f"{name}: {text!r} is neither milliseconds nor a time with zone such as 2026-05-01T14:03:00Z")
            return None
        return ms_of(time)

    def _bytes(self, name: str, default: int) -> int:
        return self.number(name, default, least=_LEAST_BYTES, most=_MOST_BYTES, unit="number of bytes")

    def _duration(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return round(parse_duration(text) * 1000)
        except ValueError as error:
            self.problems.append(f"{name}: {error}")
            return None
