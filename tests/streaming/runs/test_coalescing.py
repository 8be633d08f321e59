"""`write.coalesce_bytes` on real brokers: few batches of many, and everything else as without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import TwoClusters
from tests.fakes.record_rules import header_of, split_batches
from tests.support.mirror_runs import ReadRecord, conf_file, create_topic, open_transaction, read_partitions, write_stamped
from tests.support.one_batch import one_batch_producer
from tests.verify.log_files import FIRST_SEGMENT
from tests.verify.mirror_main import catch_up

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.operations.status import gather_status
from shallow_mirror.verify import Unchecked, verify_mirror
from shallow_mirror.wire import CONTROL_BIT

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(120)]

BATCHES = 20
OLD = [(f"old {n}", 1_600_000_000_000 + n) for n in range(2)]
"""What the target refuses; between small batches that become one."""


def write_small(bootstrap: str, topic: str, first: int) -> None:
    """Batches of three records, each with a key, a header and in lz4; one of them is a tombstone."""
    producer = one_batch_producer(bootstrap, topic, **{"compression.type": "lz4"})
    for n in range(first, first + BATCHES):
        for text in (f"{n} once", f"{n} twice", None):
            producer.produce(topic, key=f"key {n}", value=text, headers={"batch": str(n), "none": None})
        assert producer.flush(60) == 0


def read(bootstrap: str, topic: str) -> list[ReadRecord]:
    return read_partitions(bootstrap, [(topic, 0)])[topic, 0]


def test_small_batches_become_few_and_one_that_the_target_refuses_among_them_is_set_aside_alone(
    two_clusters: TwoClusters, topic_name: str, tmp_path: Path
) -> None:
    source, target, topic = two_clusters.source, two_clusters.target, topic_name[-60:]
    create_topic(source.bootstrap, topic)
    write_small(source.bootstrap, topic, 0)
    write_stamped(source.bootstrap, topic, OLD)
    with open_transaction(source.bootstrap, topic, ["of a transaction"]):
        pass
    write_small(source.bootstrap, topic, BATCHES)
    create_topic(target.bootstrap, topic, settings={"message.timestamp.before.max.ms": "3600000"})
    policy = {"write": {"on_refused": "quarantine", "coalesce_bytes": 1 << 16}}
    conf = conf_file(tmp_path, source.bootstrap, target.bootstrap, [topic], **policy)
    settings = MirrorConfig.load(conf)

    catch_up(conf)
    originals, copies = read(source.bootstrap, topic), read(target.bootstrap, topic)
    poison = [original for original in originals if (original.value or b"").startswith(b"old ")]
    kept = [original for original in originals if original not in poison]
    assert [record[1:] for record in copies] == [record[1:] for record in kept]
    assert len(copies) == 6 * BATCHES + 1

    offset_map = OffsetMap.open(settings.tables)
    for original, copy in list(zip(kept, copies, strict=True))[::23]:
        translated = offset_map.translate(topic, 0, original.offset)
        assert (translated.exact, translated.target_offset) == (True, copy.offset)
        assert offset_map.reverse(topic, 0, copy.offset).target_offset == original.offset
    assert [offset_map.translate(topic, 0, record.offset).kind for record in poison] == ["quarantined"] * len(OLD)
    report = verify_mirror(settings, is_deep=True)
    assert (report.differences, report.unchecked) == ((), {Unchecked.QUARANTINED: len(OLD)})

    written = (
        header_of(raw_batch) for raw_batch in split_batches((target.folder / "data" / f"{topic}-0" / FIRST_SEGMENT).read_bytes())
    )
    batches = [batch for batch in written if not batch.attributes & CONTROL_BIT]
    assert [batch.records_count for batch in batches][-2:] == [1, 3 * BATCHES]
    done = gather_status(settings).micro_batches
    assert sum(micro_batch.rebuilt_batch_count for micro_batch in done) >= BATCHES
