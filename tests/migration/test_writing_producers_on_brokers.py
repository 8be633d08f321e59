"""Real brokers tell who writes: transactional id, producer id, or that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.migration.application import Writer
from tests.migration.migrations import scene
from tests.support import mirror_runs as runs

from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.session import SYSTEM_CLOCK
from shallow_mirror.migration.steps import Direction
from shallow_mirror.migration.writing_producers import WritingProducers, holders_sentence

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(100)]


@contextmanager
def writing(kind: str, topic: str, bootstrap: str) -> Iterator[Writer]:
    writer = Writer(kind, topic, 1)
    writer.start(bootstrap)
    try:
        yield writer
    finally:
        writer.stop()


def test_writers_of_every_kind_are_named_and_none_that_has_stopped(two_clusters: Any, topic_name: str, tmp_path: Path) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    topics = {kind: f"{topic_name}-{kind}" for kind in ("plain", "idempotent", "transactional")}
    for topic in topics.values():
        runs.create_topic(source, topic)
        runs.create_topic(target, topic)
    with (
        scene(tmp_path, two_clusters, list(topics.values()), []) as made,
        closing(Passage(made.files(), made.files().config.waves[0], Direction.MOVE)) as passage,
    ):
        with ExitStack() as writers:
            for kind, topic in topics.items():
                writers.enter_context(writing(kind, topic, source))
            seen = WritingProducers(passage, SYSTEM_CLOCK, passage.log_ends())

            def text() -> str:
                seen._text = None  # looks again, however soon
                return seen.seen(passage.log_ends())

            wanted = (
                f"(transactional id {topics['transactional']}-writer, last record of 20",
                f") in {topics['transactional']}-0",
                f") in {topics['idempotent']}-0",
                f"a producer without id (neither idempotent nor transactional) in {topics['plain']}-0",
            )
            runs.wait_for("all three", lambda: all(part in text() for part in wanted))
        assert WritingProducers(passage, SYSTEM_CLOCK, passage.log_ends()).seen(passage.log_ends()) == ""
        with runs.open_transaction(target, topics["plain"], ["open"]):
            found = holders_sentence(passage, sorted(passage.other_log_ends()), at_origin=False)
        assert f"(transactional id writer-of-{topics['plain']}, last record of 20" in found
        assert found.endswith(f") in {topics['plain']}-0")
