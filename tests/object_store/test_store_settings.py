"""What the mirror file says about the store, the probe of conditional writes, and what observations say of an outage."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.object_store.servers import SECRET_KEY, Store, options_for
from tests.object_store.store_proxy import Harm, StoreFault

from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableLocation, TableStorage, choose_writer
from shallow_mirror.checkpoints.tables.backends.conditional_put_probe import PROBE_FOLDER, require_conditional_puts
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, StoreUnreachableError
from shallow_mirror.object_store.store_options import REQUEST_TIMEOUT_S

COMMITS = r"_delta_log/\d{20}\.json"


def loaded(folder: Path, storage: dict[str, Any]) -> MirrorConfig:
    cluster = {"bootstrap.servers": "localhost:9092"}
    document = {
        "mirror": "m",
        "source": {"alias": "a", "client": cluster},
        "target": {"alias": "b", "client": cluster},
        "topics": {"include": ["t"]},
        "tables": "s3://bucket/tables",
        "storage": storage,
    }
    return MirrorConfig.from_document(document, folder=folder)


def test_a_secret_of_the_store_is_given_by_reference_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage\.options\.AWS_SECRET_ACCESS_KEY: must not be in plain text") as raised:
        loaded(tmp_path, {"options": {"AWS_SECRET_ACCESS_KEY": "hunter2"}})
    assert "hunter2" not in str(raised.value)


def test_a_reference_that_cannot_be_resolved_is_a_problem_of_the_mirror_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage\.options\.azure_storage_account_key: .*NO_SUCH_VARIABLE is not set"):
        loaded(tmp_path, {"options": {"azure_storage_account_key": "${env:NO_SUCH_VARIABLE}"}})


def test_options_travel_unresolved_and_are_resolved_where_a_table_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_SECRET", "hunter2")
    config = loaded(
        tmp_path, {"options": {"aws_secret_access_key": "${env:STORE_SECRET}", "aws_allow_http": True, "timeout": "9s"}}
    )
    assert "hunter2" not in config.to_json() + repr(config) + repr(config.table_location)
    options = MirrorConfig.from_json(config.to_json()).table_location.options()
    assert options is not None
    assert (options["aws_secret_access_key"], options["aws_allow_http"], options["timeout"]) == ("hunter2", "true", "9s")


def test_every_store_has_timeouts_and_a_folder_has_no_options() -> None:
    options = TableLocation("s3://bucket/tables").options()
    assert options is not None
    assert options["timeout"] == f"{REQUEST_TIMEOUT_S}s"
    assert options.keys() >= {"connect_timeout", "max_retries", "retry_timeout"}
    assert [TableLocation(location).options() for location in ("/tables", "file:///tables", "dbfs:/tables")] == [None] * 3


def test_credentials_of_the_environment_still_work(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in options_for(store.proxy.endpoint).items():
        monkeypatch.setenv(name, SECRET_KEY if name == "AWS_SECRET_ACCESS_KEY" else value)
    assert choose_writer(store.location, "auto") == "deltalake"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"AWS_SECRET_ACCESS_KEY": "wrong"},
            "the store refuses to open the table: 403 SignatureDoesNotMatch.*check the credentials",
        ),
        ({"AWS_ALLOW_HTTP": "false"}, "URL scheme is not allowed.*AWS_ALLOW_HTTP"),
        ({"timeout": "5 parsecs"}, "storage.options or `tables` cannot be used: .*5 parsecs"),
        ({"max_retries": "many"}, "storage.options or `tables` cannot be used: .*many"),
    ],
)
def test_wrong_options_are_named_before_the_first_run_begins(store: Store, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_writer(store.storage(**changes), "auto")


def test_a_scheme_that_no_store_has_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="Unknown scheme: s33"):
        choose_writer("s33://bucket/tables", "auto")


def test_a_store_that_is_unreachable_at_the_start_is_waited_for(store: Store) -> None:
    with store.proxy.faulty(StoreFault(harm=Harm.ANSWER_503)):
        with pytest.raises(StoreUnreachableError, match="503 SlowDown"):
            choose_writer(store.storage(), "auto")


def test_a_store_that_honours_conditional_writes_passes_the_probe_and_keeps_nothing_of_it(store: Store) -> None:
    require_conditional_puts(store.storage())
    assert any(PROBE_FOLDER in path and method == "PUT" for method, path in store.proxy.requests())
    assert store.files() == []


def test_a_store_that_ignores_conditional_writes_is_refused(store: Store) -> None:
    with store.proxy.faulty(StoreFault(harm=Harm.REPLACE, method="PUT", path=COMMITS)):
        with pytest.raises(ConfigError, match=r"the store ignores conditional writes \(If-None-Match\)"):
            require_conditional_puts(store.storage())
    assert store.files() == []


def test_conditional_writes_that_are_switched_off_are_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="aws_conditional_put is disabled"):
        require_conditional_puts(store.storage(aws_conditional_put="disabled"))


def test_a_probe_that_the_store_does_not_answer_says_nothing_of_conditional_writes(store: Store) -> None:
    with store.proxy.faulty(StoreFault(harm=Harm.CUT, method="PUT")):
        with pytest.raises(StoreUnreachableError, match="did not write the probe"):
            require_conditional_puts(store.storage())


def test_credentials_that_may_not_write_are_refused_before_the_take_over(store: Store) -> None:
    with store.proxy.faulty(StoreFault(harm=Harm.ANSWER_403, method="PUT")):
        with pytest.raises(ConfigError, match="refuses to write the probe of conditional writes: 403 AccessDenied"):
            require_conditional_puts(store.storage())


def test_a_folder_is_not_probed(tmp_path: Path) -> None:
    require_conditional_puts(TableLocation(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_observations_of_an_outage_are_one_plain_line_in_the_log(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    observations = TableStorage(store.storage(max_retries="0")).best_effort_tables()
    with caplog.at_level(logging.WARNING), store.proxy.faulty(StoreFault(harm=Harm.ANSWER_503)):
        for number in range(5):
            observations.append("micro_batches", pa.table({"a": [number]}))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "could not write an observation to micro_batches" in lines[0]
    assert "503 SlowDown" in lines[0]
    assert not any(mark in lines[0] for mark in ("\n", "\x1b", "<"))


def test_observations_that_an_unreachable_store_did_not_take_are_written_later(store: Store) -> None:
    observations = TableStorage(store.storage(max_retries="0")).background_tables()
    with store.proxy.faulty(StoreFault(harm=Harm.ANSWER_503)):
        for number in range(3):
            observations.append("problems", pa.table({"a": [number]}))
        observations.flush()
    observations.append("problems", pa.table({"a": [3]}))
    observations.flush()
    assert sorted(row["a"] for row in observations.read("problems", ())) == [0, 1, 2, 3]


def test_controls_are_kept_on_a_store_and_say_when_they_cannot_be(store: Store) -> None:
    controls = Controls.open(store.storage())
    controls.add("pause", ["orders"])
    assert controls.paused().keys() == {"orders"}
    with store.proxy.faulty(StoreFault(harm=Harm.CUT)):
        with pytest.raises(StoreUnreachableError, match=r"controls: the store did not (open the table|read rows)"):
            controls.paused()
