"""Options of `kafka-archive`: checked as a whole, with the archive file as another way to say where an archive is."""

from __future__ import annotations

from pathlib import Path

import pytest

from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.record_reader import MOST_OPENED_BYTES
from shallow_mirror.archive_reading.scan_plan import PART_BYTES
from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.sources.archive_options import is_record_option, parse_archive_options

LEAST = {"tables": "/archive/tables", "objects": "/archive/objects"}


def problems(**options: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        parse_archive_options(options)
    return raised.value.problems


def test_the_least_options_read_committed_batches() -> None:
    options = parse_archive_options(LEAST)
    assert (options.tables.root, options.objects, options.storage_options) == ("/archive/tables", "/archive/objects", {})
    assert (options.is_records, options.includes_aborted, options.pushes_filters) == (False, False, False)
    assert options.bounds == ReadBounds()
    assert (options.part_bytes, options.most_opened_bytes, options.lineage) == (PART_BYTES, MOST_OPENED_BYTES, None)


def test_names_are_understood_in_lower_case() -> None:
    given = {"includeaborted": "TRUE", "records": "true", "maxtimestampdisorder": "2 hours", "partitionbytes": "2000000"}
    options = parse_archive_options({**LEAST, **given, "maxopenedbytes": "3000000", "storage.aws_region": "eu-west-1"})
    assert (options.is_records, options.includes_aborted, options.bounds.disorder_ms) == (True, True, 7_200_000)
    assert (options.part_bytes, options.most_opened_bytes) == (2_000_000, 3_000_000)
    assert options.storage_options == options.tables.written_options == {"aws_region": "eu-west-1"}


def test_a_lineage_is_a_number() -> None:
    assert parse_archive_options({**LEAST, "lineage": "0"}).lineage == 0
    assert problems(**LEAST, lineage="-1") == ("lineage: '-1' is not a whole number",)


def test_the_state_of_a_time_and_other_topic_ids_are_asked_for() -> None:
    options = parse_archive_options({**LEAST, "asOf": "2026-05-01T00:00:00Z", "topicIds": "one, two"})
    assert (options.as_of_ms, options.topic_ids, options.reads_all_topic_ids) == (
        1_777_593_600_000,
        frozenset({"one", "two"}),
        False,
    )
    every = parse_archive_options({**LEAST, "topicIds": "all"})
    assert (every.as_of_ms, every.topic_ids, every.reads_all_topic_ids) == (None, frozenset(), True)
    assert problems(**LEAST, topicIds=" ", asOf="now") == (
        "topicIds: is empty",
        "asOf: 'now' is neither milliseconds nor a time with zone such as 2026-05-01T14:03:00Z",
    )


def test_bounds_are_half_open() -> None:
    given = {
        "startingOffset": "5",
        "endingOffset": "9",
        "startingTimestamp": "2026-05-01T00:00:00Z",
        "endingTimestamp": "1777593601000",
    }
    options = parse_archive_options({**LEAST, **given, "subscribe": "a, b", "partitions": "0,7"})
    assert options.bounds == ReadBounds(
        topics=frozenset({"a", "b"}),
        partitions=frozenset({0, 7}),
        start_offset=5,
        end_offset=9,
        min_timestamp_ms=1_777_593_600_000,
        max_timestamp_ms=1_777_593_600_999,
    )


def test_bounds_that_are_none_are_named() -> None:
    given = {"startingOffset": "-1", "endingTimestamp": "2026-05-01T00:00:00", "subscribe": " ,", "partitions": "x"}
    assert [problem.split(":")[0] for problem in problems(**LEAST, **given)] == [
        "subscribe",
        "partitions",
        "startingOffset",
        "endingTimestamp",
    ]


def test_every_problem_is_named_at_once() -> None:
    found = problems(records="yes", partitionbytes="1", maxtimestampdisorder="soon", objcts="/o")
    assert [problem.split(":")[0] for problem in found] == [
        "objcts",
        "tables",
        "objects",
        "records",
        "partitionBytes",
        "maxTimestampDisorder",
    ]
    assert "did you mean objects?" in found[0]


def test_a_secret_is_a_reference_and_its_value_is_in_no_message_and_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = problems(**LEAST, **{"storage.aws_secret_access_key": "hunter2"})
    assert problem.startswith("storage.aws_secret_access_key: must not be in plain text")
    assert "hunter2" not in problem
    monkeypatch.setenv("KEY", "hunter2")
    options = parse_archive_options({**LEAST, "storage.aws_secret_access_key": "${env:KEY}"})
    assert "hunter2" not in repr(options)
    assert options.storage_options == {"aws_secret_access_key": "${env:KEY}"}


def test_tables_that_only_spark_reads_are_refused_with_the_function_that_finds_them() -> None:
    (problem,) = problems(tables="catalog:main.archive", objects="/o")
    assert "can be read by Spark only" in problem
    assert "kafka_archive_options(spark, ARCHIVE_FILE)" in problem


def test_the_table_of_an_archive_may_have_a_folder_of_its_own() -> None:
    options = parse_archive_options({"archivesegments": "s3://b/5f0c", "objects": "s3://b/o", "storage.aws_region": "x"})
    assert options.tables.uri("archive_segments") == "s3://b/5f0c"
    assert options.tables.is_object_store
    assert options.tables.written_options == {"aws_region": "x"}
    with pytest.raises(ValueError, match="s3://b/5f0c is the table archive_segments: there is no archive_topics"):
        options.tables.uri("archive_topics")


def test_the_folder_of_the_table_is_given_once_and_absolute() -> None:
    assert problems(archiveSegments="/t", tables="/tables", objects="/o") == ("archiveSegments: give either this or `tables`",)
    assert problems(archiveSegments="t", objects="/o") == ("archiveSegments: t: not an absolute folder or a URI",)
    assert problems(archiveSegments="/t") == ("objects: is missing",)
    (problem,) = problems(archiveSegments="dbfs:/t", objects="/o")
    assert problem.startswith("archiveSegments: dbfs:/t can be read by Spark only")


def test_an_archive_file_and_a_folder_of_the_table_exclude_each_other(archive_file: Path) -> None:
    (problem,) = problems(archive=str(archive_file), archiveSegments="/t")
    assert problem == "archiveSegments: are in the archive file; give either `archive` or these"


def test_table_folders_are_absolute() -> None:
    assert [problem.split(":")[:2] for problem in problems(tables="tables", objects="objects")] == [
        ["tables", " tables"],
        ["objects", " objects"],
    ]


@pytest.fixture
def archive_file(tmp_path: Path) -> Path:
    path = tmp_path / "archive.yaml"
    path.write_text(
        "archive: backup\nsource: {alias: east, client: {bootstrap.servers: 'localhost:9092'}}\ntopics: {include: ['.*']}\n"
        "objects: objects\ntables: tables\n"
    )
    return path


def test_an_archive_file_says_where_the_archive_is(archive_file: Path) -> None:
    options = parse_archive_options({"archive": str(archive_file)})
    assert options.tables.root == str(archive_file.parent / "tables")
    assert options.objects == str(archive_file.parent / "objects")


def test_an_archive_file_and_its_settings_are_not_given_together(archive_file: Path) -> None:
    (problem,) = problems(archive=str(archive_file), tables="/t", **{"storage.region": "x"})
    assert problem.startswith("tables, storage.*: are in the archive file")


def test_problems_of_the_archive_file_are_named_with_its_path(tmp_path: Path) -> None:
    (problem,) = problems(archive=str(tmp_path / "none.yaml"))
    assert problem.startswith(f"archive: {tmp_path}/none.yaml: ")


def test_the_schema_depends_on_records() -> None:
    assert is_record_option({"Records": "true"})
    assert not is_record_option({})
    with pytest.raises(ConfigError, match="records: 'maybe' is not one of true, false"):
        is_record_option({"records": "maybe"})
