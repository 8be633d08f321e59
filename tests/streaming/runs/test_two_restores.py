"""Two restores into one topic, begun at the same time."""

from __future__ import annotations

import pytest
from tests.support.inline_restores import InlineRestores
from tests.support.inline_session import InlineSession
from tests.support.mirror_runs import CrashAt, CrashError

from shallow_mirror.config import RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks import Observer
from shallow_mirror.streaming.runs import Restore

pytestmark = pytest.mark.thorough

REFUSAL = r"target topic east.orders \(for orders\) holds records that this restore did not write"


def restore(config: RestoreConfig, observer: Observer = lambda _point: None) -> None:
    assert Restore(config, observer=observer).run(InlineSession()) == ()


def other(restores: InlineRestores) -> RestoreConfig:
    return restores.config(restore="other", tables=(restores.folder / "other").as_uri())


def visible_records(restores: InlineRestores) -> int:
    """Return how many records a read_committed consumer sees."""
    log = restores.target.log("east.orders")
    assert log.last_stable_offset == log.end_offset
    written = [each for each in log.batches if not each.header.is_control]
    return sum(
        each.header.records_count
        for each in written
        if not any(
            aborted.producer_id == each.header.producer_id
            and aborted.first_offset <= each.header.base_offset < aborted.last_offset
            for aborted in log.aborted
        )
    )


def test_of_two_only_the_first_copies(restores: InlineRestores) -> None:
    left = [other(restores)]

    def observer(reached: str) -> None:
        if reached == "TakeDecision" and left:
            restore(left.pop())

    with pytest.raises(ConfigError, match=REFUSAL):
        restore(restores.config(), observer)
    assert visible_records(restores) == 10


def test_the_first_continues_if_its_records_were_still_open(restores: InlineRestores) -> None:
    left = [other(restores)]

    def observer(reached: str) -> None:
        if reached == "TakeDecision" and left:
            with pytest.raises(CrashError):
                restore(left.pop(), CrashAt("RunSlots"))

    with pytest.raises(ConfigError, match=REFUSAL):
        restore(restores.config(), observer)
    restore(other(restores))
    assert visible_records(restores) == 10


def test_the_refused_one_can_be_made_under_another_name(restores: InlineRestores) -> None:
    left = [other(restores)]

    def observer(reached: str) -> None:
        if reached == "TakeDecision" and left:
            restore(left.pop())

    begun = restores.config(restore="begun", tables=(restores.folder / "begun").as_uri())
    with pytest.raises(ConfigError, match=r"Restore with another `restore` name, `tables` and topics\.target_name"):
        restore(begun, observer)
    tables = (restores.folder / "third").as_uri()
    restore(restores.config(restore="third", tables=tables, topics={"target_name": "third.{topic}"}))
    assert restores.records("third.orders") == 10


def test_what_the_restore_itself_left_open_is_none_of_another(restores: InlineRestores) -> None:
    restores.crash("RunSlots")
    assert restores.restore() == ()
    assert visible_records(restores) == 10
