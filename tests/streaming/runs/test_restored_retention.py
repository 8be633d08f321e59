"""Nothing that was restored is deleted before an operator lifts that, and `verify` says what is not there any more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.archives import PAYMENTS
from tests.support.inline_restores import PRESERVED, WEEK_MS, InlineRestores
from tests.support.record_batches import batch

from shallow_mirror.cli import main
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.restore.retention import RetentionLift, lift_retention
from shallow_mirror.operations.status import gather_status
from shallow_mirror.sinks.kafka.targets import NO_LIMIT_MS
from shallow_mirror.verify import verify_restore

pytestmark = pytest.mark.thorough

TRANSLATED: dict[str, Any] = {}
OF_A_WEEK: dict[str, Any] = {"retention.ms": str(WEEK_MS), "message.timestamp.after.max.ms": str(NO_LIMIT_MS)}


def lift(restores: InlineRestores, *, is_applied: bool = True, **settings: Any) -> RetentionLift:
    return lift_retention(restores.config(**settings), is_applied=is_applied)


@pytest.mark.parametrize("offsets", [TRANSLATED, PRESERVED], ids=["translated", "preserved"])
def test_a_new_topic_deletes_nothing_until_that_is_lifted(
    restores: InlineRestores, offsets: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    planned = restores.dry_run(topics=offsets)
    text = "\n".join(planned.sentences())
    assert planned.topics[0].paused == {"retention.ms": str(WEEK_MS)}
    assert "its retention is paused until `shallow-mirror restore FILE --lift-retention` sets retention.ms=604800000" in text
    restores.restore(topics=offsets)
    assert restores.settings("east.orders")["retention.ms"] == "-1"
    assert "retention is paused in 1 topic (east.orders)" in caplog.text
    assert gather_status(restores.config(topics=offsets)).paused_retention == ("east.orders",)
    (shown,) = lift(restores, is_applied=False, topics=offsets).topics
    assert shown.changes == {"retention.ms": str(WEEK_MS)}
    assert "has retention.ms=604800000: 12 of 12 records to restore are older" in shown.deletes[0]
    assert restores.settings("east.orders")["retention.ms"] == "-1"
    assert lift(restores, topics=offsets).is_fine
    assert restores.settings("east.orders")["retention.ms"] == str(WEEK_MS)
    assert "its retention is not paused" in "\n".join(lift(restores, topics=offsets).sentences())
    assert gather_status(restores.config(topics=offsets)).paused_retention == ()
    restores.restore(topics=offsets)  # a complete restore does not pause it again
    assert restores.settings("east.orders")["retention.ms"] == str(WEEK_MS)


def test_a_value_that_somebody_has_set_since_is_left_alone(restores: InlineRestores) -> None:
    restores.restore()
    restores.settings("east.orders")["retention.ms"] = "99"
    (topic,) = lift(restores).topics
    assert (topic.changes, topic.kept) == ({}, {"retention.ms": "99"})
    assert restores.settings("east.orders")["retention.ms"] == "99"


def test_without_archived_settings_the_defaults_of_the_brokers_return(restores: InlineRestores) -> None:
    settings: dict[str, Any] = {"topics": {"configs": "off"}}
    restores.restore(**settings)
    assert restores.settings("east.orders")["min.compaction.lag.ms"] == str(NO_LIMIT_MS)
    text = "\n".join(lift(restores, **settings).sentences())
    assert "retention.ms=the default of the brokers" in text
    assert "min.compaction.lag.ms" not in restores.settings("east.orders")


def test_an_incomplete_restore_is_not_lifted_and_not_verified_as_equal(restores: InlineRestores) -> None:
    with pytest.raises(ConfigError, match="the restore has not begun"):
        lift(restores)
    restores.crash("RunSlots")
    with pytest.raises(ConfigError, match=r"--lift-retention: the restore is not complete \(orders-0 at 0 of 10, orders-1 at 0"):
        lift(restores)
    report = verify_restore(restores.config())
    assert not report.is_equal
    assert "orders-0 is restored up to 0 of 10: run `shallow-mirror restore`" in report.uncovered
    restores.restore()
    report = verify_restore(restores.config(["orders", "payments"]))
    assert report.uncovered == ("the file includes topic payments, which is not restored yet: run `shallow-mirror restore`",)


def test_a_topic_that_exists_is_never_changed_and_refused_where_it_would_delete(
    restores: InlineRestores, caplog: pytest.LogCaptureFixture
) -> None:
    restores.target.create_topic("east.orders", 2, **OF_A_WEEK)
    planned = restores.dry_run([".*"])
    (problem,) = planned.topics[0].problems
    assert not planned.is_fine
    assert "target topic east.orders has retention.ms=604800000: 12 of 12 records to restore are older" in problem
    with pytest.raises(ConfigError) as raised:
        restores.restore([".*"])
    assert raised.value.problems == (problem,)
    assert "east.payments" not in restores.target.topic_ids
    # Nothing is restored yet, so that the remedies that change the file can be followed.
    accepted = restores.dry_run([".*"], topics={"retention": "archived"})
    assert accepted.is_fine
    assert "east.orders has retention.ms=604800000: 12 of 12 records" in accepted.topics[0].notes[0]
    assert "target topic east.payments will delete: it has retention.ms=604800000: 7 of 7" in accepted.topics[1].notes[0]
    restores.restore([".*"], topics={"target_name": "back.{topic}"})
    assert restores.settings("east.orders")["retention.ms"] == str(WEEK_MS)
    assert [topic.target for topic in lift(restores, include=[".*"], topics={"target_name": "back.{topic}"}).topics] == [
        "back.orders",
        "back.payments",
    ]


def test_records_that_brokers_would_refuse_are_named_before_they_are_written(restores: InlineRestores) -> None:
    limited: dict[str, Any] = {"retention.ms": "-1", "message.timestamp.before.max.ms": "60000"}
    restores.target.create_topic("east.orders", 2, **limited)
    (problem,) = restores.dry_run().topics[0].problems
    assert "message.timestamp.before.max.ms=60000: brokers would refuse 12 of 12 records" in problem
    assert restores.dry_run(write={"on_refused": "quarantine"}).is_fine


@pytest.mark.parametrize("offsets", [TRANSLATED, PRESERVED], ids=["translated", "preserved"])
def test_what_the_target_has_deleted_since_is_not_verified_as_equal(restores: InlineRestores, offsets: dict[str, Any]) -> None:
    restores.restore(topics=offsets)
    config = restores.config(topics=offsets)
    assert verify_restore(config).is_equal
    restores.target.log("east.orders", 0).delete_records_before(5)
    report = verify_restore(config, from_start=True)
    (sentence,) = report.uncovered
    assert not report.is_equal
    assert sentence.startswith("5 offsets of east.orders-0 were restored and are gone: its log begins at 5 now, so retention")
    assert report.sentences()[0] == "no difference in what could be compared, which is not all that was asked for"
    for partition in range(2):
        log = restores.target.log("east.orders", partition)
        log.delete_records_before(log.end_offset)
    report = verify_restore(config, from_start=True)
    assert (report.is_equal, report.record_count, len(report.uncovered)) == (False, 0, 2)
    assert report.document()["uncovered"] == list(report.uncovered)


def test_records_that_are_missing_while_compaction_is_paused_are_differences(restores: InlineRestores) -> None:
    restores.describe({"cleanup.policy": "compact"})
    restores.restore()
    assert restores.settings("east.orders")["max.compaction.lag.ms"] == str(NO_LIMIT_MS)
    log = restores.target.log("east.orders", 0)
    del log.batches[0]
    report = verify_restore(restores.config())
    assert not report.is_equal
    assert report.difference_counts
    restores.settings("east.orders")["min.compaction.lag.ms"] = "0"
    assert not verify_restore(restores.config(), from_start=True).difference_counts


def test_the_command_lifts_and_exits_with_what_was_left_out(
    restores: InlineRestores, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.inline_session import InlineSession

    from shallow_mirror.commands import sessions

    monkeypatch.setattr(sessions, "submitted_session", InlineSession)
    file = restores.folder / "restore.yaml"

    def run(*options: str, include: tuple[str, ...] = ("orders",)) -> tuple[object, str]:
        file.write_text(json.dumps(restores.document(include)))
        with pytest.raises(SystemExit) as ended:
            main(["restore", str(file), *options])
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err

    assert run("--lift-retention")[0] == 2
    code, text = run(include=("orders", "refunds-.*"))
    assert (code, "left out: topics.include: the archive has no topic that matches refunds-.*" in text) == (1, True), text
    assert run()[0] == 0
    code, text = run("--lift-retention", "--dry-run")
    assert (code, "target topic east.orders: would set retention.ms=604800000" in text) == (0, True)
    code, text = run("--lift-retention", "--json")
    document = json.loads(text.splitlines()[-1])
    assert (code, document["topics"][0]["changes"], document["is_applied"]) == (0, {"retention.ms": "604800000"}, True)
    assert run("--json")[0] == 2
    restores.target.delete_topic("east.orders")
    code, text = run("--lift-retention")
    assert (code, "was deleted, or created again" in text) == (1, True)


def test_the_log_of_a_restore_counts_down_to_its_own_end(restores: InlineRestores, caplog: pytest.LogCaptureFixture) -> None:
    restores.archive.archive({PAYMENTS: [batch(7, 1)]})
    caplog.set_level("INFO")
    restores.restore([".*"], read={"micro_batch_bytes": 1 << 20})
    lines = [message for message in caplog.messages if message.startswith("micro-batch")]
    assert lines
    assert lines[-1].endswith("; 0 offsets left")
