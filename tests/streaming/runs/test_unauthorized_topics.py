from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence

import pytest
from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.config.sections import SourceTopicSettings
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.runs.permissions import require_authorized_topics


@pytest.fixture
def fake() -> Iterator[StrictCluster]:
    with StrictCluster() as cluster:
        yield cluster


def ask(
    fake: StrictCluster,
    include: list[str],
    listed: list[str],
    mirrored: Collection[str] = (),
    *,
    exclude: Sequence[str] = (),
    waits_for_topics: bool = True,
) -> None:
    source = Cluster(ClientConfig.from_properties({"bootstrap.servers": fake.bootstrap}))
    try:
        deadline = Deadline.after_ms(5_000, time.monotonic)
        topics = SourceTopicSettings(include=include, exclude=list(exclude))
        require_authorized_topics(source, topics, mirrored, listed, deadline, waits_for_topics=waits_for_topics)
    finally:
        source.close()


def test_a_topic_that_is_named_and_hidden_is_refused_with_the_right(fake: StrictCluster) -> None:
    fake.change_always("Metadata", error(29))
    with pytest.raises(ConfigError, match=r"source topic secret: TOPIC_AUTHORIZATION_FAILED: grant Read on topic secret$"):
        ask(fake, ["secret", "open", "other.*"], ["open"])


def test_a_topic_that_is_named_and_excluded_needs_no_right(fake: StrictCluster) -> None:
    fake.change_always("Metadata", error(29))
    ask(fake, ["secret", "open"], ["open"], exclude=["sec.*"])


def test_a_run_that_waits_for_no_topics_refuses_a_source_without_any(fake: StrictCluster) -> None:
    with pytest.raises(ConfigError, match=r"no topic of the source matches later, any\.\* \(topics\.include\)"):
        ask(fake, ["later", "any.*"], [], waits_for_topics=False)
    ask(fake, ["any.*"], ["any-1"], waits_for_topics=False)
    ask(fake, ["any.*"], [], mirrored=["any-1"], waits_for_topics=False)


def test_what_does_not_exist_yet_is_only_reported(fake: StrictCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    ask(fake, ["later", "any.*"], [])
    assert "no topic of the source matches later, any.* (topics.include)" in caplog.text
    assert fake.asked("Metadata") == 1
    ask(fake, ["any.*"], ["any-1"])
    assert fake.asked("Metadata") == 1


def test_a_topic_that_was_mirrored_and_is_hidden_now_is_refused_though_others_are_listed(fake: StrictCluster) -> None:
    fake.change_always("Metadata", error(29))
    with pytest.raises(ConfigError, match=r"source topic sales: TOPIC_AUTHORIZATION_FAILED: grant Read on topic sales$"):
        ask(fake, ["(bills|sales)"], ["bills"], mirrored=["bills", "sales"])


def test_an_expression_of_the_letters_of_names_that_matches_is_no_name(fake: StrictCluster) -> None:
    fake.change_always("Metadata", error(29))
    ask(fake, ["sale."], ["sales"])
