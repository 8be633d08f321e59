"""Poison on real brokers: what the target refuses for good and what is damaged is kept, all else goes on, and can come later."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TwoClusters
from tests.fakes.record_rules import header_of, split_batches
from tests.support.mirror_runs import (
    CrashAt,
    CrashError,
    conf_file,
    create_topic,
    positions,
    read_partitions,
    set_topic,
    write_stamped,
)
from tests.verify.log_files import FIRST_SEGMENT
from tests.verify.mirror_main import catch_up
from tests.verify.mirrored import flipped

from shallow_mirror import cli
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.operations.quarantine import Selection
from shallow_mirror.operations.quarantine_retry import retry
from shallow_mirror.verify import Unchecked, verify_mirror

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(300)]

NOW_MS = int(time.time() * 1000)
LONG_AGO_MS = NOW_MS - 30 * 86_400_000
MOST_BYTES = 3_000
STRICT = {"message.timestamp.before.max.ms": "3600000", "max.message.bytes": str(MOST_BYTES)}
OPEN = {"message.timestamp.before.max.ms": "9223372036854775807", "max.message.bytes": "1000000"}

BATCHES: Sequence[tuple[str, int]] = (
    ("good", NOW_MS),
    ("old", LONG_AGO_MS),
    ("fine", NOW_MS),
    ("large " * MOST_BYTES, NOW_MS),
    ("sound", NOW_MS),
    ("damaged", NOW_MS),
    ("last", NOW_MS),
    ("later", NOW_MS),
)
"""Of three records each: value and timestamp."""

POISON = (1, 3, 5)
DAMAGED = 5
LATER = 7
"""Is written when the others were mirrored."""

RECORDS = 3


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and standard output."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    return int(ended.value.code or 0), capsys.readouterr().out


def write_all(clusters: TwoClusters, topic: str) -> list[bytes]:
    """Write the batches and return them as the source has them. One of them is damaged on disk, under the running broker."""
    create_topic(clusters.source.bootstrap, topic)
    for value, at_ms in BATCHES[:LATER]:
        write_stamped(clusters.source.bootstrap, topic, [(f"{value} {n}", at_ms + n) for n in range(RECORDS)])
    log = clusters.source.folder / "data" / f"{topic}-0" / FIRST_SEGMENT
    batches = split_batches(log.read_bytes())
    assert [header_of(batch).base_offset for batch in batches] == [RECORDS * n for n in range(LATER)]
    batches[DAMAGED] = flipped(batches[DAMAGED], len(batches[DAMAGED]) - 4)
    with log.open("r+b") as opened:
        opened.write(b"".join(batches))
    return batches


def expected(topic_partitions: Sequence[int]) -> list[tuple[bytes, int]]:
    return [(f"{BATCHES[i][0]} {n}".encode(), BATCHES[i][1] + n) for i in topic_partitions for n in range(RECORDS)]


def copied(clusters: TwoClusters, topic: str) -> list[tuple[bytes | None, int]]:
    return [(record.value, record.timestamp_ms) for record in read_partitions(clusters.target.bootstrap, [(topic, 0)])[topic, 0]]


def test_poison_is_kept_as_it_was_all_else_is_copied_and_what_a_remedy_helps_comes_later(
    two_clusters: TwoClusters, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters, topic = two_clusters, topic_name[-60:]
    batches = write_all(clusters, topic)
    create_topic(clusters.target.bootstrap, topic, settings=STRICT)
    policy: dict[str, Any] = {"write": {"on_refused": "quarantine"}}
    conf = conf_file(tmp_path, clusters.source.bootstrap, clusters.target.bootstrap, [topic], **policy)
    settings = MirrorConfig.load(conf)

    catch_up(conf)
    assert copied(clusters, topic) == expected([0, 2, 4, 6])
    assert_translated(settings, clusters, topic, {0: "data", 1: "quarantined", 2: "data", 3: "quarantined", 5: "quarantined"})
    code, output = command(capsys, "verify", str(conf))
    assert (code, "no difference" in output, "not copied: 9 source offsets in quarantine" in output) == (0, True, True), output
    assert verify_mirror(settings, is_deep=True).unchecked == {Unchecked.QUARANTINED: 9}
    assert "in quarantine: 3 batches" in command(capsys, "status", str(conf))[1]

    code, output = command(capsys, "quarantine", "list", str(conf), "--json")
    listed = json.loads(output)
    assert (code, [entry["source_start"] for entry in listed]) == (0, [3, 9, 15])
    assert [entry["error_name"] for entry in listed] == ["INVALID_TIMESTAMP", None, "CORRUPT_MESSAGE"]
    output = command(capsys, "quarantine", "list", str(conf))[1]
    assert output.startswith("3 batches\n")
    assert "message.timestamp.before.max.ms" in output
    assert command(capsys, "quarantine", "export", str(conf), str(tmp_path / "out"))[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "batches.jsonl").read_text().splitlines()]
    assert [(tmp_path / "out" / line["file"]).read_bytes() for line in lines] == [batches[i] for i in POISON]

    code, output = command(capsys, "quarantine", "retry", str(conf), "--offset", "4")
    assert (code, "released 0 batches" in output, "still in quarantine" in output) == (1, True, True), output
    set_topic(clusters.target.bootstrap, topic, OPEN)
    with pytest.raises(CrashError):
        retry(settings, Selection(topic=topic, offset=4), observer=CrashAt("Decide"))
    write_stamped(clusters.source.bootstrap, topic, [(f"{BATCHES[LATER][0]} {n}", NOW_MS + n) for n in range(RECORDS)])
    catch_up(conf)
    assert copied(clusters, topic) == expected([0, 2, 4, 6, 1, LATER])
    code, output = command(capsys, "quarantine", "retry", str(conf))
    assert (code, "released 1 batch with 3 records" in output, "CRC" in output) == (1, True, True), output
    assert copied(clusters, topic) == expected([0, 2, 4, 6, 1, LATER, 3])
    for depth in ((), ("--deep",)):
        code, output = command(capsys, "verify", str(conf), *depth)
        assert (code, "not copied: 3 source offsets in quarantine" in output) == (0, True), output
    assert_translated(settings, clusters, topic, {1: "released", 2: "data", 3: "released", 5: "quarantined", 6: "data"})
    assert positions(settings) == {(topic, 0): RECORDS * len(BATCHES)}


def assert_translated(settings: MirrorConfig, clusters: TwoClusters, topic: str, kinds: Mapping[int, str]) -> None:
    """Every record of these batches, by its value."""
    copies = {record.value: record.offset for record in read_partitions(clusters.target.bootstrap, [(topic, 0)])[topic, 0]}
    offset_map = OffsetMap.open(settings.tables)
    for batch, kind in kinds.items():
        for n, (value, _) in enumerate(expected([batch])):
            translated = offset_map.translate(topic, 0, RECORDS * batch + n)
            assert (translated.kind, translated.exact) == (kind, kind != "quarantined")
            assert not translated.exact or translated.target_offset == copies[value]
            assert not translated.exact or offset_map.reverse(topic, 0, copies[value]).target_offset == RECORDS * batch + n
