"""A restore that is started again with another file: more topics are added at the same cut, every other result is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.archives import ORDERS, OTHER, PAYMENTS
from tests.support.inline_restores import PRESERVED, InlineRestores
from tests.support.mirror_runs import CrashError
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import RestoreRangesTable
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.cli import main
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.operations.status import gather_status
from shallow_mirror.streaming.runs import restore as restore_run
from shallow_mirror.verify import verify_restore

pytestmark = pytest.mark.thorough


def test_topics_that_the_file_includes_later_are_restored_at_the_same_cut(restores: InlineRestores) -> None:
    assert restores.restore() == ()
    restores.archive.archive({ORDERS: [batch(10, 1)], PAYMENTS: [batch(7, 9)]})
    both = ["orders", "payments"]
    planned = restores.dry_run(both)
    assert (planned.is_begun, planned.added_topics, planned.last_decision) == (True, ["payments"], 2)
    assert [(each.topic, each.position, each.end) for each in planned.partitions][-1] == ("payments", 0, 7)
    assert "topics that will be added to it: payments" in planned.sentences()
    assert restores.restore(both) == ()
    assert (restores.records("east.orders"), restores.records("east.payments")) == (10, 7)
    decided = RestoreRangesTable.of(TableStorage(restores.config().table_location)).read()
    assert decided is not None
    assert decided.topic_names == {"orders", "payments"}
    report = verify_restore(restores.config(both))
    assert (report.is_equal, report.record_count) == (True, 19)
    assert restores.restore(both) == ()
    assert restores.dry_run(both).added_topics == []


def test_they_are_added_to_a_restore_that_was_killed_too(restores: InlineRestores) -> None:
    restores.crash("Decide")
    restores.crash("Decide", [".*"])
    restores.restore([".*"])
    assert (restores.records("east.orders"), restores.records("east.payments")) == (10, 7)


CHANGES: Sequence[tuple[Mapping[str, Any], str]] = (
    ({"read": {"isolation_level": "read_uncommitted"}}, "read.isolation_level: this restore began with read_committed"),
    ({"read": {"log_append_time": "producer"}}, "read.log_append_time: this restore began with keep, the file has producer"),
    ({"topics": {"target_name": "back.{topic}"}}, "began with orders as east.orders, the file has orders as back.orders"),
    ({"topics": {"configs": "off"}}, "topics.configs: this restore began with create, the file has off"),
    ({"topics": PRESERVED}, "translated offsets of orders, the file has preserved: set it back, or give --offsets translated"),
    (
        {"until": {"decision": 1}},
        "until.decision: this restore began with none, the file has 1: set it back, or give --at-decision",
    ),
    ({"until": {"whole_transactions": True}}, "until.whole_transactions: this restore began with false, the file has true"),
    ({"until": {"lineage": 0}}, "until.lineage: this restore began with none, the file has 0"),
)


def test_a_file_that_leads_to_another_result_is_refused_with_the_difference(restores: InlineRestores) -> None:
    restores.crash("Decide")
    for settings, problem in CHANGES:
        refused = restores.refusal(**settings)
        assert problem in refused
        assert "Another restore needs" in refused
        with pytest.raises(ConfigError, match="this restore began with"):
            verify_restore(restores.config(**settings))
    report = gather_status(restores.config(read={"isolation_level": "read_uncommitted"}))
    assert "the next start will be refused: read.isolation_level" in report.changed_settings[0]
    restores.restore()
    assert restores.records("east.orders") == 10
    assert gather_status(restores.config()).changed_settings == ()


def test_translate_answers_from_the_map_whatever_the_file_says(
    restores: InlineRestores, capsys: pytest.CaptureFixture[str]
) -> None:
    restores.restore()
    file = restores.folder / "restore.yaml"
    file.write_text(json.dumps(restores.document(["payments"], topics={"target_name": "back.{topic}"})))
    for topic, translation in (
        ("orders", "target east.orders-0 offset 6 (exact)"),
        ("payments", "payments-0 was never restored"),
    ):
        with pytest.raises(SystemExit):
            main(["translate", str(file), topic, "0", "6"])
        said = capsys.readouterr()
        assert translation in said.out + said.err


def test_all_differences_are_named_at_once(restores: InlineRestores) -> None:
    restores.restore()
    refused = restores.refusal(["payments"], read={"isolation_level": "read_uncommitted"}, until={"decision": 2})
    assert "read.isolation_level" in refused
    assert "until.decision" in refused


def test_a_topic_may_be_left_out_when_it_is_complete(restores: InlineRestores, caplog: pytest.LogCaptureFixture) -> None:
    restores.crash("RunSlots", [".*"])
    assert "this restore began with payments, the file leaves it out, and it is not complete" in restores.refusal(["orders"])
    restores.restore([".*"])
    restores.restore(["orders"])
    assert "payments is complete and stays as it is" in caplog.text
    assert {source.topic for source in (each.source for each in gather_status(restores.config()).partitions)} == {
        "orders",
        "payments",
    }


def test_what_changes_no_result_may_change(restores: InlineRestores, caplog: pytest.LogCaptureFixture) -> None:
    restores.crash("Decide")
    free: dict[str, Any] = {
        "write": {"slots": 2, "request_bytes": 1},
        "read": {"fetch_bytes": 1 << 16},
        "topics": {"replication_factor": 1, "retention": "archived"},
        "groups": {"commit": "at-end", "include": ["app"]},
        "archive": {"alias": "east"},
    }
    restores.restore(**free)
    assert restores.records("east.orders") == 10
    assert "groups: this restore began with commit off, include .*, the file has commit at-end, include app" in caplog.text


def test_topics_whose_rows_the_archive_has_deleted_since_are_known(restores: InlineRestores) -> None:
    restores.restore()
    table = DeltaTable(str(restores.folder / "tables" / "archive_segments"))
    table.delete("source_topic = 'orders'")
    restores.restore()
    restores.restore(["orders", "payments"])
    assert restores.records("east.payments") == 7


def test_a_cut_with_whole_transactions_takes_no_more_topics(restores: InlineRestores) -> None:
    whole: dict[str, Any] = {"until": {"whole_transactions": True}}
    restores.restore(**whole)
    assert "payments cannot be added to a restore with whole_transactions" in restores.refusal([".*"], **whole)


def test_a_table_of_an_earlier_release_is_continued_and_takes_no_more_topics(
    restores: InlineRestores, caplog: pytest.LogCaptureFixture
) -> None:
    restores.crash("Decide")
    nulls = dict.fromkeys(("settings", "target_topic", "is_preserved", "run_epoch"), "null")
    DeltaTable(str(restores.folder / "restore" / "restore_ranges")).update(updates=nulls)
    assert "payments cannot be added to a restore of an earlier release" in restores.refusal([".*"])
    restores.restore()
    assert restores.records("east.orders") == 10
    assert "was begun by a release that did not record read.isolation_level" in caplog.text


def test_killed_right_behind_the_decision_the_file_may_change_and_added_topics_are_restored(
    restores: InlineRestores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(restore_run, "decide_first_rows", killed)
        with pytest.raises(CrashError):
            restores.restore(until={"decision": 1})
    other: dict[str, Any] = {"read": {"isolation_level": "read_uncommitted"}}
    assert not restores.dry_run(**other).is_begun
    restores.restore(**other)
    assert restores.records("east.orders") == 10
    with monkeypatch.context() as patched:
        patched.setattr(restore_run, "decide_first_rows", killed)
        with pytest.raises(CrashError):
            restores.restore([".*"], **other)
    assert "payments, the file leaves it out, and it is not complete (payments-0 at 0 of 7)" in restores.refusal(**other)
    report = verify_restore(restores.config([".*"], **other))
    assert report.uncovered == ("payments-0 is restored up to 0 of 7: run `shallow-mirror restore`",)
    status = gather_status(restores.config([".*"], **other))
    assert {each.source.topic: each.lag_offsets for each in status.partitions} == {"orders": 0, "payments": 7}
    restores.restore([".*"], **other)
    assert restores.records("east.payments") == 7


def test_of_two_first_decisions_the_later_run_counts(restores: InlineRestores) -> None:
    table = RestoreRangesTable.of(TableStorage(restores.config().table_location))
    restores.restore()
    decided = table.read()
    assert decided is not None
    table.write(replace(decided, run_epoch=decided.run_epoch - 1, last_decision=1, until=json.dumps({"decision": 1})))
    assert table.read() == decided


def test_an_attempt_that_ended_behind_the_decision_is_repeated_with_it_while_the_archive_grows(
    restores: InlineRestores, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, decide_first_rows = list[str](), vars(restore_run)["decide_first_rows"]

    def ends_once(*arguments: Any) -> None:
        if not ended:
            ended.append("the target does not answer")
            restores.archive.archive({ORDERS: [batch(10, 5)], OTHER: [batch(2, 1)]})
            raise RetriableError("REQUEST_TIMED_OUT", ended[0])
        decide_first_rows(*arguments)

    monkeypatch.setattr(restore_run, "decide_first_rows", ends_once)
    restores.crash("Decide")
    restores.restore()
    decided = RestoreRangesTable.of(TableStorage(restores.config().table_location)).read()
    assert decided is not None
    assert (decided.last_decision, [offsets.end for offsets in decided.ranges.values()]) == (2, [10, 2])
    assert restores.records("east.orders") == 10


def test_a_topic_that_another_restore_has_filled_since_it_was_registered_is_refused(restores: InlineRestores) -> None:
    restores.crash("TakeDecision")
    other = str(restores.folder / "other")
    assert restores.restore(restore="other", tables=other) == ()
    refusal = "target topic east.orders (for orders) holds records that this restore did not write"
    (planned,) = restores.dry_run().topics
    assert planned.problems[0].startswith(refusal)
    with pytest.raises(ConfigError, match=re.escape(refusal)):
        restores.restore()
    assert restores.records("east.orders") == 10


def test_tries_that_were_aborted_take_no_topic(restores: InlineRestores) -> None:
    restores.crash("RunSlots")
    assert restores.target.log("east.orders").end_offset > 0
    assert restores.dry_run().is_fine
    assert restores.restore() == ()
    assert restores.dry_run().is_fine
