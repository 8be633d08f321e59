from __future__ import annotations

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from shallow_mirror import config as config_module
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import IsolationLevel, LogAppendTimePolicy, QuarantineLimits

_CONF = Path(__file__).parent.parent / "conf"


def _document(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "mirror": "m",
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
        "target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2"}},
        "topics": {"include": ["orders.*"]},
        "tables": "data/m",
    }
    return document | changes


def _problems(**changes: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        MirrorConfig.from_document(_document(**changes), folder=Path("/"))
    return caught.value.problems


def _loaded(**changes: Any) -> MirrorConfig:
    return MirrorConfig.from_document(_document(**changes), folder=Path("/folder"))


def test_the_example_is_valid_and_says_the_defaults() -> None:
    example = MirrorConfig.load(_CONF / "example.yaml")
    assert example.read == config_module.ReadSettings()
    assert example.write == config_module.WriteSettings()
    assert example.groups == config_module.GroupSettings()
    assert example.schemas == config_module.SchemaSettings()
    assert example.metrics == config_module.LagMetricsSettings()
    assert example.trigger_s == 2.0
    assert example.tables == str(_CONF.parent.resolve() / "data/orders-east-west")


def test_relative_paths_are_relative_to_the_mirror_file(tmp_path: Path) -> None:
    path = tmp_path / "mirror.yaml"
    path.write_text(yaml.safe_dump(_document()), encoding="utf-8")
    loaded = MirrorConfig.load(path)
    assert loaded.tables == str(tmp_path / "data/m")
    assert loaded.checkpoint == str(tmp_path / "data/m/_spark")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/abs/x", "/abs/x"),
        ("s3://b/x", "s3://b/x"),
        ("file:///abs/x", "/abs/x"),
        ("x/../y", "/folder/y"),
        ("dbfs:/x", "dbfs:/x"),
    ],
)
def test_uris_and_absolute_paths_stay(written: str, meant: str) -> None:
    assert _loaded(tables=written).tables == meant


@pytest.mark.parametrize(
    ("changes", "where", "near"),
    [
        ({"topcis": {}}, "topcis", "topics"),
        ({"read": {"fetch_byte": 1 << 20}}, "read.fetch_byte", "fetch_bytes"),
        ({"source": {"alias": "a", "client": {"bootstrap.servers": "h:1"}, "clients": {}}}, "source.clients", "client"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(changes: dict[str, Any], where: str, near: str) -> None:
    assert _problems(**changes) == (f"{where}: unknown key; did you mean {near}?",)


def test_an_unknown_key_like_nothing_lists_the_known_ones() -> None:
    assert "known here: slots" in _problems(write={"zzz": 1})[0]


def test_all_problems_come_at_once() -> None:
    problems = _problems(
        mirror="a b",
        read={"start": "yesterday", "transfer": "by-train", "micro_batch_bytes": "1GiB"},
        write={"transaction_timeout_ms": 900_001, "in_flight_requests": 10_001},
        source={"alias": "east", "client": {"bootstrap.serverz": "h:1"}},
    )
    text = "\n".join(problems)
    for where in ("mirror:", "read.start:", "read.transfer:", "read.micro_batch_bytes:", "write.transaction_timeout_ms:"):
        assert where in text
    assert "write.in_flight_requests:" in text
    assert "bootstrap.serverz" in text


def test_only_with_quarantine_there_is_a_bound_of_what_may_be_quarantined() -> None:
    assert _loaded().write.quarantine_limits is None
    write: dict[str, Any] = {"on_refused": "quarantine"}
    assert _loaded(write=write).write.quarantine_limits == QuarantineLimits(batches=100, size_bytes=16 << 20)
    write |= {"max_quarantined_bytes": 5000, "max_quarantined_batches": 7}
    assert _loaded(write=write).write.quarantine_limits == QuarantineLimits(batches=7, size_bytes=5000)


def test_tables_in_a_schema_are_one_text_once_read_and_survive_the_way_to_another_process() -> None:
    config = _loaded(tables={"schema": "main.mirrors"}, checkpoint="/checkpoints/m")
    assert (config.tables, config.checkpoint) == ("catalog:main.mirrors", "/checkpoints/m")
    assert config.spark_log == Path("/checkpoints/m.log")
    assert MirrorConfig.from_json(config.to_json()) == config
    assert _loaded(tables="/data/m").spark_log == Path("/data/m/_spark.log")
    nowhere_here = _loaded(tables="s3://bucket/tables", checkpoint="s3://bucket/checkpoint")
    assert nowhere_here.spark_log == Path(tempfile.gettempdir()) / f"{nowhere_here.mirror}.spark.log"


def test_tables_in_a_schema_need_a_checkpoint_of_their_own_and_the_writer_that_reaches_them() -> None:
    assert _problems(tables={"schema": "main.mirrors"}, tables_writer="deltalake") == (
        "tables_writer: deltalake cannot write to a catalog: use tables_writer: auto or spark",
        "checkpoint: is missing; tables in a catalog have no folder that could hold it",
    )


@pytest.mark.parametrize("tables", [{"schema": "mirrors"}, {"scheme": "a.b"}, {"schema": "a.b.c"}, {"schema": 7}, {}, "", 7])
def test_any_other_folder_of_tables_is_refused(tables: Any) -> None:
    (problem,) = _problems(tables=tables, checkpoint="/c")
    assert problem.startswith("tables: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"topics": {"include": []}},
        {"topics": {"include": ["("]}},
        {"topics": {"include": ["a"], "target_name": "fixed"}},
        {"topics": {"include": ["a"], "replication_factor": 0}},
        {"topics": {"include": "a"}},
        {"topics": {"include": ["__consumer_offsets"]}},
        {"topics": {"include": ["a"], "discovery": "now and then"}},
        {"topics": {"include": ["a"], "configs": "some"}},
        {"topics": {"include": ["a"], "start": {"a": 5}}},
        {"topics": {"include": ["a"], "start": {"a": {}}}},
        {"topics": {"include": ["a"], "start": {"a": {"x": 1}}}},
        {"topics": {"include": ["a"], "start": {"a": {0: -1}}}},
        {"topics": {"include": ["a"], "start": {"a": "yesterday"}}},
        {"topics": {"include": ["a"], "start": {"(": "latest"}}},
        {"topics": {"include": ["a"], "bytes_per_second": {"a": 1}}},
        {"write": {"bytes_per_second": 0}},
        {"write": {"slots": 0}},
        {"write": {"slots": True}},
        {"read": {"isolation_level": "serializable"}},
        {"read": None},
        {"trigger": "soon"},
        {"groups": {"sync": "often"}},
        {"groups": {"include": ["("]}},
        {"trigger": 2},
        {"tables": ""},
        {"source": {"alias": "west", "client": {"bootstrap.servers": "h:1"}}},
        {"source": "east"},
    ],
)
def test_senseless_values_are_one_problem(changes: dict[str, Any]) -> None:
    assert len(_problems(**changes)) == 1


@pytest.mark.parametrize("document", [None, [], "text", 7])
def test_a_file_without_settings_is_refused(document: object) -> None:
    with pytest.raises(ConfigError, match="YAML mapping"):
        MirrorConfig.from_document(document, folder=Path("/"))


def test_files_that_cannot_be_read_are_config_errors(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [", encoding="utf-8")
    for path in (tmp_path / "none.yaml", broken):
        with pytest.raises(ConfigError):
            MirrorConfig.load(path)


@pytest.mark.parametrize(
    ("start", "timestamp_ms"),
    [("earliest", -2), ("latest", -1), ("1970-01-01T00:00:01Z", 1000), ("1970-01-01T01:00:01+01:00", 1000)],
)
def test_starts_become_list_offsets_timestamps(start: str, timestamp_ms: int) -> None:
    assert _loaded(read={"start": start}).read.start_timestamp_ms == timestamp_ms


def test_a_start_that_yaml_reads_as_a_time_is_one() -> None:
    document = yaml.safe_load("start: 1970-01-01T00:00:01Z")
    assert _loaded(read=document).read.start_timestamp_ms == 1000


def test_starts_of_topics_are_times_and_offsets_also_in_another_process() -> None:
    text = "start: {a: latest, b.*: 1970-01-01T00:00:01Z, c: {0: 5, 12: 7}}"
    config = _loaded(topics={"include": ["a"], **yaml.safe_load(text)})
    rules = (("a", -1), ("b.*", 1000), ("c", {0: 5, 12: 7}))
    assert config.topics.start_rules == MirrorConfig.from_json(config.to_json()).topics.start_rules == rules


@pytest.mark.parametrize("start", ["2026-01-01T00:00:00", "2026-01-01"])
def test_a_start_without_time_zone_is_refused(start: str) -> None:
    assert _problems(read={"start": start})[0].startswith("read.start: ")


@pytest.mark.parametrize(
    ("trigger", "seconds"), [("2 seconds", 2.0), ("1 second", 1.0), ("500 ms", 0.5), ("1.5s", 1.5), ("1 minute", 60.0)]
)
def test_triggers_are_seconds(trigger: str, seconds: float) -> None:
    assert _loaded(trigger=trigger).trigger_s == seconds


@pytest.mark.parametrize(("sync", "seconds"), [("off", None), (False, None), ("30 seconds", 30.0)])
def test_groups_are_kept_in_step_every_so_often_or_not_at_all(sync: object, seconds: float | None) -> None:
    groups = _loaded(groups={"sync": sync, "exclude": ["test-.*"]}).groups
    assert groups.sync_s == seconds
    assert [groups.is_included(group) for group in ("app", "test-1", "my-test-1")] == [True, False, True]


def test_a_config_travels_by_pickle_and_json_with_references_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_NAME", "resolved-name")
    secret = {"bootstrap.servers": "127.0.0.1:1", "client.id": "${env:CLIENT_NAME}"}
    loaded = _loaded(
        source={"alias": "east", "client": secret}, read={"isolation_level": "read_uncommitted", "log_append_time": "producer"}
    )
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    assert MirrorConfig.from_json(loaded.to_json()) == loaded
    assert "${env:CLIENT_NAME}" in loaded.to_json()
    assert "resolved-name" not in loaded.to_json() + repr(loaded) + repr(loaded.source.client)
    assert loaded.source.client.client_id == "resolved-name"
    assert loaded.read.isolation_level is IsolationLevel.READ_UNCOMMITTED
    assert loaded.read.log_append_time is LogAppendTimePolicy.PRODUCER


def test_secrets_are_not_in_problems() -> None:
    client = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "hunter2"}
    problems = _problems(source={"alias": "east", "client": client})
    assert "sasl.password" in problems[0]
    assert "hunter2" not in "".join(problems)
    assert "hunter2" not in "".join(_problems(source={"alias": "east", "client": client | {"client.id": ["hunter2"]}}))


def test_values_are_frozen() -> None:
    with pytest.raises(ValueError):
        _loaded().write.slots = 3


def test_a_file_that_is_no_yaml_and_values_in_the_wrong_place_are_reported_without_what_may_be_secret(tmp_path: Path) -> None:
    path = tmp_path / "mirror.yaml"
    path.write_text("mirror: m\nsource: {client: {sasl.password: 'hunter2}}\n")
    with pytest.raises(ConfigError, match=r"is not YAML: found unexpected end of stream in line 3, column 1") as caught:
        MirrorConfig.load(path)
    assert "hunter2" not in str(caught.value)
    for source in ([{"client": {"sasl.password": "hunter2"}}], {"alias": "a", "client": [{"sasl.password": "hunter2"}]}):
        assert not any("hunter2" in problem for problem in _problems(source=source))


@pytest.mark.parametrize(
    "text", ["mirror: a\nmirror: b\n", "topics:\n  include: [a]\n  include: [b]\n", "read: {start: a, 'start': b}"]
)
def test_a_key_that_stands_there_twice_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mirror.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"is not YAML: the same key for the second time in line \d, column \d+"):
        MirrorConfig.load(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mirror: {{ name }}\n", "found unhashable key in line 1, column 10"),
        ("? [hunter2]\n: a\n", "found unhashable key in line 1, column 3"),
        ("read:\n  start: 2026-02-30T00:00:00Z\n", "day .* in line 2, column 10"),
        ("read:\n  slots: !!int hunter2\n", "this value cannot be read in line 2, column 10"),
        ("read:\n  start: !!timestamp hunter2\n", "this value cannot be read in line 2, column 10"),
    ],
)
def test_a_value_that_yaml_cannot_read_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    """A template that was not filled in, and a day that there is not."""
    path = tmp_path / "mirror.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"is not YAML: {problem}$") as caught:
        MirrorConfig.load(path)
    assert "hunter2" not in str(caught.value)


def test_usual_spellings_of_settings_are_understood_or_explained() -> None:
    assert [_loaded(topics={"include": ["a"], "configs": off}).topics.configs for off in (False, "off")] == ["off", "off"]
    assert _problems(trigger=5) == ("trigger: '5' is not a duration such as '2 seconds', '500 ms' or '1 minute'",)
    assert _problems(topics={"include": []}) == ("topics.include: an empty list: at least one is needed",)


def test_key_files_that_do_not_fit_are_reported_with_the_side_whose_they_are(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    tls = {"bootstrap.servers": "h:1", "security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "ca.pem")}
    missing = tls | {"ssl.certificate.location": "/not/there", "ssl.key.location": "/nor/there"}
    problems = _problems(source={"alias": "a", "client": tls}, target={"alias": "b", "client": missing})
    assert problems == (
        f"source.client.ssl.ca.location: {tmp_path}/ca.pem: holds no certificate in PEM format (-----BEGIN CERTIFICATE-----)",
        "target.client.ssl.certificate.location: cannot read /not/there: No such file or directory",
        "target.client.ssl.key.location: cannot read /nor/there: No such file or directory",
    )


def test_a_commit_interval_is_below_what_slots_may_take_and_by_default_fits_itself_to_a_short_timeout() -> None:
    assert _loaded().write.commit_interval_s == 20
    short = _loaded(write={"transaction_timeout_ms": 12_000})
    assert short.write.commit_interval_s == 4
    assert MirrorConfig.from_json(short.to_json()) == short
    assert _loaded(write={"commit_interval": "200 seconds"}).write.commit_interval_s == 200
    (problem,) = _problems(write={"transaction_timeout_ms": 12_000, "commit_interval": "20 seconds"})
    assert problem.startswith("write.commit_interval: 20 seconds are not below 9, the 75% of write.transaction_timeout_ms=12000")
    assert "write.commit_interval" in _problems(write={"commit_interval": "0 s"})[0]


@pytest.mark.parametrize(("value", "limit", "is_automatic"), [(None, None, False), (4096, 4096, False), ("auto", 1 << 20, True)])
def test_coalescing_is_off_automatic_or_up_to_a_number_of_bytes(value: object, limit: int | None, is_automatic: bool) -> None:
    write = _loaded(write={"coalesce_bytes": value}).write
    assert (write.coalesce_limit_bytes, write.coalesces_where_cheaper) == (limit, is_automatic)


@pytest.mark.parametrize("value", [12, 1 << 30, True, "yes", 1.5])
def test_another_coalescing_is_refused_in_one_sentence(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        _loaded(write={"coalesce_bytes": value})
    (problem,) = caught.value.problems
    assert problem == (
        f"write.coalesce_bytes: {value!r} is none of a number of bytes from 1024 to 67108864, auto, and null (off)"
    )


def _registry_problems(**schemas: Any) -> tuple[str, ...]:
    return _problems(schemas=schemas)


def test_schema_registries_are_optional_and_come_in_pairs() -> None:
    assert not _loaded().schemas.has_registries
    both = _loaded(schemas={"source": {"url": "https://east:8081/api"}, "target": {"url": "http://west"}, "compatibility": False})
    assert both.schemas.has_registries
    assert both.schemas.compatibility == "off"
    assert MirrorConfig.from_json(both.to_json()) == both
    # A file that has every default written in it, as the settings of a running mirror are.
    assert MirrorConfig.from_document(json.loads(_loaded().to_json()), folder=Path("/folder")) == _loaded()
    assert _registry_problems(source={"url": "http://east"}) == ("schemas.target.url: is missing",)


@pytest.mark.parametrize(
    ("registry", "problem"),
    [
        ({"url": "east:8081"}, "schemas.source.url: must be a URL such as https://registry.east:8081"),
        ({"url": "http://east:99999"}, "schemas.source.url: must be a URL such as https://registry.east:8081"),
        (
            {"url": "http://me:pass@east"},
            "schemas.source.url: must not hold a user name or password: use username, and password by reference",
        ),
        ({"url": "http://east?a=b"}, "schemas.source.url: must end with the path of the API, without ? and #"),
        ({"username": "me", "password": "${env:X}"}, "schemas.source.url: is missing"),
        ({"url": "http://east", "username": "me"}, "schemas.source.username and password: give both or none"),
        (
            {"url": "http://east", "username": "me", "password": "${env:X}", "token": "${env:Y}"},
            "schemas.source.token: excludes username: give one of them",
        ),
        ({"url": "http://east", "ca_file": "ca.pem"}, "schemas.source.ca_file: has no effect with an http: URL"),
        ({"url": "http://east", "ulr": "x"}, "schemas.source.ulr: unknown key; did you mean url?"),
    ],
)
def test_contradictory_registries_are_named(registry: dict[str, str], problem: str) -> None:
    assert problem in _registry_problems(source=registry, target={"url": "http://west"})


@pytest.mark.parametrize("secret", ["hunter2", 12345, "${env:X}hunter2"])
@pytest.mark.parametrize("key", ["password", "token"])
def test_secrets_of_registries_are_given_by_reference_and_never_shown(key: str, secret: object) -> None:
    problems = _registry_problems(source={"url": "http://east", key: secret}, target={"url": "http://west"})
    assert problems[0].startswith(f"schemas.source.{key}: ")
    assert not any("hunter2" in problem or "12345" in problem for problem in problems)


def test_offsets_of_a_topic_are_those_of_the_first_pattern() -> None:
    topics = _loaded(topics={"include": [".*"], "offsets": {"a": "continued", "b": "preserved", "[ac]": "translated"}}).topics
    assert [topics.is_preserved(topic) for topic in "abcd"] == [True, True, False, False]
    assert [topics.is_continued(topic) for topic in "abcd"] == [True, False, False, False]
    assert topics.preserves_offsets
    assert not _loaded(topics={"include": [".*"], "offsets": {".*": "translated"}}).topics.preserves_offsets


@pytest.mark.parametrize("offsets", ["preserved", "continued"])
def test_what_preserved_offsets_exclude_is_refused(offsets: str) -> None:
    topics = {"include": ["a"], "offsets": {"a": offsets}, "configs": "off"}
    problems = _problems(topics=topics, write={"on_refused": "quarantine"})
    assert [problem.partition(":")[0] for problem in problems] == ["write.on_refused", "topics.configs"]
