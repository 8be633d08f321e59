"""Which query a micro-batch is of, through Spark Connect: by the lists of queries of sessions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.dataframes import streaming_query
from shallow_mirror.streaming.dataframes.streaming_query import micro_batch_of


@pytest.fixture(autouse=True)
def connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_query, "is_connect", lambda _session: True)
    monkeypatch.setattr(streaming_query, "_LISTED_WITHIN_MS", 0)


def session(*names: str | None) -> Any:
    """Return a session that lists these queries."""
    active = [SimpleNamespace(name=name, id=f"query of {name}", runId=f"run of {name}") for name in names]
    return SimpleNamespace(version="4.3.0", streams=SimpleNamespace(active=active))


def batch_of(clone: Any, starter: Any) -> tuple[str | None, int | None, str]:
    batch, run_id = micro_batch_of(SimpleNamespace(sparkSession=clone), 7, "sink", starter)
    return batch.query_id, batch.batch_id, run_id


def test_the_session_of_a_micro_batch_lists_its_query_before_spark_4_3() -> None:
    assert batch_of(session(None), None) == ("query of None", 7, "run of None")
    both = session(None)
    assert batch_of(both, both) == ("query of None", 7, "run of None")


def test_the_session_that_started_the_query_lists_it_if_the_one_of_the_micro_batch_is_a_clone() -> None:
    assert batch_of(session(), session("other", "sink")) == ("query of sink", 7, "run of sink")


def test_a_query_that_is_not_listed_or_not_named_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\(4.3.0\) does not list the query .* created beside the query"):
        batch_of(session(), None)
    with pytest.raises(ConfigError, match=r"runs 2 queries .* queryName\('sink'\)"):
        batch_of(session(), session("one", "two"))
