"""The same requests to the fake and to a real broker: both must answer what the table says, code by code."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import crc32c
import pyarrow as pa
import pytest
from tests.fakes.kafka_codec import request_type
from tests.fakes.peers import NOW_MS, Peer, idempotent, transactional
from tests.fakes.record_rules import split_batches
from tests.support.record_batches import batch, record, varint

HOUR_MS = 3_600_000


def damaged(made: bytes) -> bytes:
    return made[:-1] + bytes([made[-1] ^ 1])


def recounted(made: bytes, count: int) -> bytes:
    """Another recordsCount, with a right CRC."""
    out = bytearray(made)
    struct.pack_into(">i", out, 57, count)
    struct.pack_into(">I", out, 17, crc32c.crc32c(bytes(out[21:])))
    return bytes(out)


def gzipped(deltas: tuple[int, ...], *, claimed: int | None = None) -> bytes:
    payload = zlib.compress(b"".join(record(delta) for delta in deltas), wbits=31)
    count = len(deltas) if claimed is None else claimed
    return batch(0, count, attributes=1, payload=payload)


def compressed(codec: int, name: str) -> bytes:
    payload = pa.Codec(name).compress(b"".join(map(record, range(3))), asbytes=True)
    return batch(0, 3, attributes=codec, payload=payload)


def xerial() -> bytes:
    """Snappy as Java frames it."""
    block = pa.Codec("snappy").compress(b"".join(map(record, range(3))), asbytes=True)
    return batch(0, 3, attributes=2, payload=b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block)


SENT: list[tuple[str, dict[str, str], Any, int]] = [
    ("a plain batch", {}, batch(0, 3), 0),
    ("base offset 1", {}, batch(1, 3), 87),
    ("two batches", {}, batch(0, 1) + batch(0, 1), 87),
    ("no bytes", {}, b"", 87),
    ("a batch cut short", {}, batch(0, 3)[:-1], 87),
    ("five bytes behind the batch", {}, batch(0, 3) + bytes(5), 0),
    ("magic 1", {}, batch(0, 1, magic=1), 87),
    ("magic 3", {}, batch(0, 1, magic=3), 2),
    ("an impossible length", {}, batch(0, 1)[:8] + (5).to_bytes(4, "big") + batch(0, 1)[12:], 2),
    ("a wrong CRC", {}, damaged(batch(0, 3)), 2),
    ("a header cut to 60 bytes", {}, bytes(8) + (48).to_bytes(4, "big") + batch(0, 1)[12:60], 2),
    ("a compressed batch with a wrong CRC", {}, damaged(gzipped((0, 1))), 2),
    ("count 0", {}, batch(0, deltas=[], last_offset_delta=0), 87),
    ("negative last offset delta", {}, batch(0, 1, last_offset_delta=-1), 87),
    ("a hole", {}, batch(0, deltas=[0, 2]), 87),
    ("count one too high", {}, recounted(batch(0, 3), 4), 87),
    ("count one too low", {}, recounted(batch(0, 3), 2), 87),
    ("fewer records than both say", {}, batch(0, 3, payload=record(0) + record(1)), 87),
    ("bytes behind the last record", {}, batch(0, 1, payload=record(0) + b"x"), 87),
    ("a record that claims too much", {}, batch(0, 1, payload=varint(500) + record(0)[1:]), 87),
    ("negative number of record headers", {}, batch(0, 1, payload=b"\x0c\x00\x00\x00\x01\x01\x01"), 87),
    ("control bit", {}, batch(0, 1, attributes=0x20), 87),
    ("delete horizon bit", {}, batch(0, 1, attributes=0x40), 0),
    ("an unused bit", {}, batch(0, 1, attributes=0x80), 0),
    ("codec 5", {}, batch(0, 1, attributes=5), -1),
    ("gzip", {}, gzipped((0, 1, 2)), 0),
    ("snappy as Java frames it", {}, xerial(), 0),
    ("snappy without frames", {}, compressed(2, "snappy"), 0),
    ("lz4", {}, compressed(3, "lz4"), 0),
    ("zstd", {}, compressed(4, "zstd"), 0),
    ("zstd under the name of lz4", {}, compressed(3, "zstd"), -1),
    ("gzip that is none", {}, batch(0, 1, attributes=1), -1),
    ("snappy that is none", {}, batch(0, 1, attributes=2), -1),
    ("lz4 that is none", {}, batch(0, 1, attributes=3), -1),
    ("zstd that is none", {}, batch(0, 1, attributes=4), -1),
    ("gzip with fewer records than it says", {}, gzipped((0, 1), claimed=3), 87),
    ("gzip with more records than it says", {}, gzipped((0, 1, 2), claimed=2), 87),
    ("a hole mended by the header, plain", {}, batch(0, 3, payload=b"".join(map(record, (0, 5, 9)))), 0),
    ("a hole mended by the header, gzip", {}, gzipped((0, 5, 9)), -1),
    ("max.message.bytes exactly", {"max.message.bytes": str(len(batch(0, 3)))}, batch(0, 3), 0),
    ("max.message.bytes and one", {"max.message.bytes": str(len(batch(0, 3)) - 1)}, batch(0, 3), 10),
    ("no key, compacted", {"cleanup.policy": "compact"}, batch(0, 1, payload=record(0)), 87),
    ("a key, compacted", {"cleanup.policy": "compact"}, batch(0, 1, payload=record(0, b"k")), 0),
    ("half an hour ahead", {}, batch(0, 1, timestamp=NOW_MS + HOUR_MS // 2), 0),
    ("two hours ahead", {}, batch(0, 1, timestamp=NOW_MS + 2 * HOUR_MS), 32),
    (
        "two hours ahead, limit open",
        {"message.timestamp.after.max.ms": str(2**63 - 1)},
        batch(0, 1, timestamp=NOW_MS + 2 * HOUR_MS),
        0,
    ),
    ("time -1", {}, batch(0, 1, timestamp=-1), 0),
    ("append time bit, CreateTime topic", {}, batch(0, 1, attributes=8), 0),
    ("append time bit, LogAppendTime topic", {"message.timestamp.type": "LogAppendTime"}, batch(0, 1, attributes=8), 32),
    ("producer id without a sequence", {}, idempotent(-1), 87),
    ("producer id with a sequence", {}, idempotent(0), 0),
    ("transactional bit, no transactional id", {}, transactional(0, (4_000_000, 0)), 53),
]


@pytest.mark.parametrize(("configs", "sent", "code"), [case[1:] for case in SENT], ids=[case[0] for case in SENT])
def test_every_kind_of_batch_is_taken_or_refused(peer: Peer, configs: dict[str, str], sent: Any, code: int) -> None:
    peer.create(**configs)
    assert peer.produce(sent) == code
    assert (peer.client.list_offsets(peer.topic, -1).offset > 0) == (code == 0)


def test_record_errors_name_the_records_to_blame(peer: Peer) -> None:
    peer.create(**{"cleanup.policy": "compact"})
    response = peer.client.produce(peer.topic, batch(0, 3, payload=record(0, b"k") + record(1) + record(2)))
    assert (response.error_code, [record_error.batch_index for record_error in response.record_errors]) == (87, [1, 2])


def test_acks_2_and_unknown_topics_are_refused(peer: Peer) -> None:
    peer.create()
    assert peer.produce(batch(0, 1), acks=2) == 21
    assert peer.produce(batch(0, 1), partition=1) == 3
    assert peer.client.produce(f"{peer.topic}-missing", batch(0, 1)).error_code == 3
    assert peer.client.metadata(f"{peer.topic}-missing").topics[0].error_code == 3


def test_a_partition_twice_in_a_request_is_answered_once_and_appended_once(peer: Peer) -> None:
    peer.create()
    assert peer.produce(batch(0, 2), twice=True) == 0
    assert peer.client.list_offsets(peer.topic, -1).offset == 2


def test_the_leader_changes_only_what_the_crc_does_not_cover(peer: Peer) -> None:
    peer.create()
    sent = batch(0, 3, leader_epoch=-1)
    peer.produce(sent)
    peer.produce(sent)
    first, second = split_batches(bytes(peer.client.fetch(peer.topic, 0).records))
    assert first[16:] == second[16:] == sent[16:]
    assert [int.from_bytes(raw[:8], "big") for raw in (first, second)] == [0, 3]
    assert first[12:16] == bytes(4)


def test_a_wrong_max_timestamp_and_append_times_are_put_right_with_the_crc(peer: Peer) -> None:
    peer.create()
    wrong = bytearray(batch(0, 1, attributes=8))
    struct.pack_into(">q", wrong, 35, 77_777)
    struct.pack_into(">I", wrong, 17, crc32c.crc32c(bytes(wrong[21:])))
    assert peer.produce(bytes(wrong)) == 0
    (stored,) = split_batches(bytes(peer.client.fetch(peer.topic, 0).records))
    assert stored[21:23] == bytes(2)
    assert crc32c.crc32c(stored[21:]) == int.from_bytes(stored[17:21], "big")


def test_a_topic_of_append_times_stamps_the_batch_and_says_so(peer: Peer) -> None:
    peer.create(**{"message.timestamp.type": "LogAppendTime"})
    response = peer.client.produce(peer.topic, batch(0, 2))
    (stored,) = split_batches(bytes(peer.client.fetch(peer.topic, 0).records))
    assert stored[22] == 0x08
    assert struct.unpack_from(">qq", stored, 27) == (1_000, response.log_append_time_ms)
    assert response.log_append_time_ms > NOW_MS
    assert crc32c.crc32c(stored[21:]) == int.from_bytes(stored[17:21], "big")


def test_requests_on_one_connection_are_answered_in_turn(peer: Peer) -> None:
    peer.create()
    kind = request_type("Produce").TopicProduceData
    data = [kind(name=peer.topic, partition_data=[kind.PartitionProduceData(index=0, records=batch(0, 2))])]
    sent = [peer.client.send("Produce", transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data) for _ in range(5)]
    responses = [peer.client.receive("Produce", correlation_id).responses[0].partition_responses[0] for correlation_id in sent]
    assert [response.base_offset for response in responses] == [0, 2, 4, 6, 8]


def test_sequences_have_their_rules(peer: Peer) -> None:
    peer.create()
    for first in range(6):
        assert peer.produce(idempotent(first)) == 0
    second = peer.client.produce(peer.topic, idempotent(1))
    assert (second.error_code, second.base_offset, second.log_append_time_ms) == (0, 1, 1_000)
    assert peer.client.list_offsets(peer.topic, -1).offset == 6
    assert peer.produce(idempotent(0)) == 45
    assert peer.produce(idempotent(7)) == 45
    assert peer.produce(idempotent(5, 2)) == 45
    assert peer.produce(idempotent(1, epoch=1)) == 45
    assert peer.produce(idempotent(0, epoch=1)) == 0
    assert peer.produce(idempotent(6)) == 47
    assert peer.produce(idempotent(500, producer_id=4_000_001)) == 0
    assert peer.produce(idempotent(2**31 - 2, 2, producer_id=4_000_002)) == 0
    assert peer.produce(idempotent(0, producer_id=4_000_002)) == 0


def test_a_sequence_may_wrap_inside_a_batch(peer: Peer) -> None:
    peer.create()
    assert peer.produce(idempotent(2**31 - 2, 4)) == 0
    assert peer.produce(idempotent(1)) == 45
    assert peer.produce(idempotent(2)) == 0


def test_a_committed_reader_sees_up_to_the_last_stable_offset_and_who_aborted(peer: Peer) -> None:
    peer.create()
    peer.produce(batch(0, 2, timestamp=NOW_MS))
    txn = peer.begun()
    peer.produce(transactional(0, txn, 3), txn=peer.txn)
    peer.produce(batch(0, 1, timestamp=NOW_MS))

    def seen(offset: int, isolation: int) -> tuple[list[int], Any, int, int]:
        part = peer.client.fetch(peer.topic, offset, isolation=isolation)
        aborted = part.aborted_transactions
        named = None if aborted is None else [(aborted_txn.producer_id, aborted_txn.first_offset) for aborted_txn in aborted]
        bases = [int.from_bytes(raw_batch[:8], "big") for raw_batch in split_batches(bytes(part.records or b""))]
        return bases, named, part.last_stable_offset, part.high_watermark

    assert seen(0, 0) == ([0, 2, 5], None, 2, 6)
    assert seen(0, 1) == ([0], [], 2, 6)
    assert seen(3, 1) == ([], [], 2, 6)
    assert [peer.client.list_offsets(peer.topic, -1, isolation=isolation).offset for isolation in (0, 1)] == [6, 2]
    assert peer.client.end(peer.txn, *txn, commit=False) == 0
    peer.client.initialised(peer.txn)
    assert seen(0, 1) == ([0, 2, 5, 6], [(txn[0], 2)], 7, 7)
    assert seen(3, 1) == ([2, 5, 6], [(txn[0], 2)], 7, 7)
    assert seen(7, 1) == ([], [], 7, 7)


def test_a_fetch_ends_with_its_log_segment_and_old_data_rolls_one(peer: Peer) -> None:
    peer.create()
    txn = peer.begun()
    peer.produce(transactional(0, txn, time_ms=1_000), txn=peer.txn)
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    peer.client.initialised(peer.txn)
    lengths = [len(split_batches(bytes(peer.client.fetch(peer.topic, offset, isolation=1).records))) for offset in (0, 1)]
    assert lengths == [1, 1]
    assert peer.client.fetch(peer.topic, 0, isolation=1).last_stable_offset == 2


def test_fetches_are_whole_batches_first_and_cut_by_bytes_then(peer: Peer) -> None:
    peer.create(2)
    made = batch(0, 3)
    for _ in range(3):
        peer.produce(made)
        peer.produce(made, partition=1)
    size = len(made)

    def sizes(**settings: Any) -> Any:
        answered = peer.client.fetch(peer.topic, 4, **settings)
        return [len(part.records or b"") for part in (answered if isinstance(answered, list) else [answered])]

    assert sizes() == [2 * size]
    assert sizes(partition_bytes=size + 10) == [size + 10]
    assert sizes(partition_bytes=10) == [size]
    assert sizes(max_bytes=10) == [size]
    assert sizes(partitions=(0, 1), partition_bytes=10) == [size, 0]
    assert sizes(partitions=(0, 1), max_bytes=size + 10) == [size + 10, 0]
    assert sizes(partitions=(0, 1), max_bytes=3 * size + 10) == [2 * size, size + 10]


def test_fetch_and_list_offsets_have_their_errors(peer: Peer) -> None:
    peer.create()
    peer.produce(batch(0, 3))
    client, topic = peer.client, peer.topic
    assert [client.fetch(topic, offset).error_code for offset in (3, 4, -1)] == [0, 1, 1]
    assert client.fetch(topic, 0, epoch=9).error_code == 75
    assert client.fetch(topic, 0, epoch=0).error_code == 0
    assert client.fetch(topic, 0, last_fetched_epoch=7).error_code == 1
    assert client.fetch(topic, 0, last_fetched_epoch=0).error_code == 0
    assert client.fetch(topic, 0, partitions=(5,)).error_code == 3
    assert client.fetch(f"{topic}-missing", 0).error_code == 3
    assert client.list_offsets(f"{topic}-missing", -1).error_code == 3
    assert client.list_offsets(topic, -1, times=2).error_code == 42
    assert client.list_offsets(topic, -3).error_code == 35
    assert client.list_offsets(topic, -1, epoch=9).error_code == 75
    assert [client.list_offsets(topic, when).offset for when in (-2, -1, 0, 1_000, 1_001)] == [0, 3, 0, 0, -1]


def test_how_far_a_leader_epoch_reaches(peer: Peer) -> None:
    peer.create()
    peer.produce(batch(0, 3))
    client, topic = peer.client, peer.topic
    epoch_end = client.epoch_end(topic, 0)
    assert (epoch_end.error_code, epoch_end.leader_epoch, epoch_end.end_offset) == (0, 0, 3)
    later = client.epoch_end(topic, 7)
    assert (later.error_code, later.leader_epoch, later.end_offset) == (0, -1, -1)
    assert client.epoch_end(topic, 0, epoch=9).error_code == 75
    assert client.epoch_end(f"{topic}-missing", 0).error_code == 3


def test_a_log_that_ends_in_front_of_the_position_is_shown_as_diverging(peer: Peer) -> None:
    peer.create()
    part = peer.client.fetch(peer.topic, 5, last_fetched_epoch=0)
    assert part.error_code == 0
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 0)


def test_deleted_records_are_out_of_range_but_the_batch_they_begin_in_stays_whole(peer: Peer) -> None:
    peer.create()
    for _ in range(3):
        peer.produce(batch(0, 4))
    peer.owner.delete_records_before(peer.topic, 6)
    assert [peer.offset(when) for when in (-2, -1)] == [6, 12]
    assert peer.client.fetch(peer.topic, 5).error_code == 1
    part = peer.client.fetch(peer.topic, 6)
    bases = [int.from_bytes(raw_batch[:8], "big") for raw_batch in split_batches(bytes(part.records))]
    assert (part.log_start_offset, bases) == (6, [4, 8])


def test_deleting_the_records_of_an_open_transaction_moves_the_last_stable_offset_and_ends_nothing(peer: Peer) -> None:
    peer.create()
    peer.produce(batch(0, 2, timestamp=NOW_MS))
    txn = peer.begun()
    for first in (0, 3):
        peer.produce(transactional(first, txn, 3), txn=peer.txn)

    def open_from() -> list[int]:
        return [
            producer.current_txn_start_offset for producer in peer.client.producers(peer.topic) if producer.producer_id == txn[0]
        ]

    stable = list[int]()
    for deleted in (3, 6, 8):
        peer.owner.delete_records_before(peer.topic, deleted)
        stable.append(peer.offset(isolation=1))
        assert open_from() == [2]
    assert stable == [2, 5, 8], "the first batch that is there, which may begin in front of the log"
    peer.produce(batch(0, 1, timestamp=NOW_MS))
    assert peer.offset(isolation=1) == 8
    assert peer.client.end(peer.txn, *txn, commit=False) == 0
    peer.client.initialised(peer.txn)
    assert (open_from(), peer.offset(isolation=1)) == ([-1], 10)


def test_who_aborted_is_known_while_a_part_of_it_is_there(peer: Peer) -> None:
    peer.create()
    txn = peer.begun()
    peer.produce(transactional(0, txn, 4), txn=peer.txn)
    assert peer.client.end(peer.txn, *txn, commit=False) == 0
    peer.client.initialised(peer.txn)
    peer.owner.delete_records_before(peer.topic, 2)
    part = peer.client.fetch(peer.topic, 2, isolation=1)
    assert [(aborted.producer_id, aborted.first_offset) for aborted in part.aborted_transactions] == [(txn[0], 0)]


def test_a_topic_that_was_created_again_has_another_id_and_begins_again(peer: Peer) -> None:
    peer.create()
    peer.produce(batch(0, 9))
    before = peer.client.metadata(peer.topic).topics[0].topic_id
    peer.delete()
    peer.create()
    assert peer.client.metadata(peer.topic).topics[0].topic_id != before
    assert peer.client.fetch(peer.topic, 5).error_code == 1
    assert peer.client.fetch(peer.topic, 5, last_fetched_epoch=0).diverging_epoch.end_offset == 0
    peer.produce(batch(0, 9))
    assert peer.client.fetch(peer.topic, 5, last_fetched_epoch=0).error_code == 0


def test_what_the_leader_remembers_of_a_producer(peer: Peer) -> None:
    peer.create()
    txn = peer.begun()
    peer.produce(batch(0, 2))
    peer.produce(transactional(0, txn, 3), txn=peer.txn)
    kind = request_type("DescribeProducers").TopicRequest

    def described() -> list[tuple[int, ...]]:
        return [
            (producer.producer_id, producer.producer_epoch, producer.last_sequence, producer.current_txn_start_offset)
            for producer in peer.client.producers(peer.topic)
        ]

    assert described() == [(*txn, 2, 2)]
    assert peer.client.end(peer.txn, *txn, commit=True) == 0
    peer.client.initialised(peer.txn)
    assert described() == [(*txn, 2, -1)]
    response = peer.client.ask("DescribeProducers", topics=[kind(name=f"{peer.topic}-missing", partition_indexes=[0])])
    assert response.topics[0].partitions[0].error_code == 3


def test_settings_of_a_topic_and_of_none(peer: Peer) -> None:
    peer.create(**{"max.message.bytes": "1234"})
    kind = request_type("DescribeConfigs").DescribeConfigsResource
    names = [peer.topic, f"{peer.topic}-missing"]
    asked = [kind(resource_type=2, resource_name=name, configuration_keys=None) for name in names]
    known, missing = peer.client.ask(
        "DescribeConfigs", resources=asked, include_synonyms=False, include_documentation=False
    ).results
    settings = {config.name: config.value for config in known.configs}
    assert (known.error_code, settings["max.message.bytes"], settings["compression.type"]) == (0, "1234", "producer")
    assert missing.error_code == 3
