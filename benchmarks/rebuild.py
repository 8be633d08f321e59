"""python benchmarks/rebuild.py: MB of wire bytes per CPU second of one core, for batches that are opened, beside the raw path.

What is timed is all that a task does between Fetch and Produce: index, admit, rebuild, restamp. Each figure is the median of
several rounds, which take turns, in CPU seconds of this process. "codec alone" opens and closes the blocks of the batches with
holes, and does nothing with them: no rebuild can be faster. "coalesced": the batches of "raw" with `write.coalesce_bytes`.
No brokers. Values are text-like; their sizes vary by a half.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, TopicPartition
from shallow_mirror.wire import BATCH_HEADER_BYTES, LOG_APPEND_TIME_BIT, Codec, build_batch
from shallow_mirror.wire.batches import admit, index_batches, restamp
from shallow_mirror.wire.protocol.primitives import uvarint
from shallow_mirror.wire.records import Outgoing, decompress, make_outgoing
from shallow_mirror.wire.records.compression import compress

PLACE = TopicPartition("bench", 0)
MAX_OPENED_BYTES = 1 << 28
LIMITS = BatchLimits(
    max_message_bytes=1 << 30, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
)
FIRST_TIMESTAMP = 1_700_000_000_000
HOLE_EVERY = 5
RAW_KINDS = ("raw", "coalesced")
KINDS = (*RAW_KINDS, "holes", "append time", "codec alone")


@dataclass(frozen=True, slots=True)
class Corpus:
    codec: Codec
    record_bytes: int
    kind: str
    batches: int
    response: bytes


def make_corpus(codec: Codec, record_bytes: int, kind: str, batch_bytes: int, batches: int) -> Corpus:
    """`batch_bytes` are those of the records of one batch before compression."""
    chance = random.Random(f"{record_bytes}")
    words = [chance.randbytes(chance.randint(2, 4)).hex() for _ in range(2_000)]
    response = bytearray()
    offset = 0
    for _ in range(batches):
        made, count = _batch(codec, record_bytes, kind, batch_bytes, offset, words, chance)
        response += made
        offset += count
    return Corpus(codec, record_bytes, kind, batches, bytes(response))


def _batch(
    codec: Codec, record_bytes: int, kind: str, batch_bytes: int, base_offset: int, words: list[str], chance: random.Random
) -> tuple[bytes, int]:
    block, delta, deltas = bytearray(), 0, [0]
    while len(block) < batch_bytes:
        if kind in (*RAW_KINDS, "append time") or delta % HOLE_EVERY != HOLE_EVERY - 1:
            block += _record(delta, _value(record_bytes, words, chance), chance)
            deltas.append(delta)
        delta += 1
    made = build_batch(
        compress(memoryview(block), codec),
        attributes=codec | (LOG_APPEND_TIME_BIT if kind == "append time" else 0),
        base_timestamp=FIRST_TIMESTAMP,
        max_timestamp=FIRST_TIMESTAMP + 3 * deltas[-1],
        records_count=len(deltas) - 1,
        last_offset_delta=deltas[-1],
        base_offset=base_offset,
    )
    return made, delta


def _value(record_bytes: int, words: list[str], chance: random.Random) -> bytes:
    size = chance.randint(record_bytes * 3 // 4, record_bytes * 5 // 4)
    text = f'{{"id":{chance.randrange(10**9)},"amount":{chance.random():.4f},"text":"'
    while len(text) < size:
        text += chance.choice(words) + " "
    return text[:size].encode()


def _record(delta: int, value: bytes, chance: random.Random) -> bytes:
    key = b"%08d" % chance.randrange(10**8)
    fields = (
        b"\0",
        uvarint(3 * delta * 2),
        uvarint(delta * 2),
        uvarint(len(key) * 2),
        key,
        uvarint(len(value) * 2),
        value,
        b"\0",
    )
    body = b"".join(fields)
    return uvarint(len(body) * 2) + body


def copy(records: memoryview, limits: BatchLimits) -> Outgoing:
    """From Fetch to Produce."""
    index = index_batches(records)
    admission = admit(index, records, topic_partition=PLACE, position=0, range_end=1 << 62, aborted=(), limits=limits)
    outgoing = make_outgoing(
        index,
        records,
        admission,
        topic_partition=PLACE,
        position=0,
        limits=limits,
        max_opened_bytes=MAX_OPENED_BYTES,
    )
    restamp(outgoing.records, outgoing.index, outgoing.chosen, producer_id=7, producer_epoch=0, first_sequence=0)
    return outgoing


def open_and_close(codec: Codec, records: memoryview) -> int:
    """Decompress and compress every batch, nothing else. Return the number of compressed bytes."""
    index = index_batches(records)
    made = 0
    for start, size in zip(index.pos.tolist(), index.size_bytes.tolist(), strict=True):
        block = decompress(records[start + BATCH_HEADER_BYTES : start + size], codec, MAX_OPENED_BYTES)
        made += len(compress(block, codec))
    return made


def cpu_seconds(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def measure(corpora: list[Corpus], rounds: int, coalescing: BatchLimits) -> list[float]:
    """CPU seconds, by place in `corpora`. The raw path is so fast that it is repeated."""
    taken: dict[int, list[float]] = {i: [] for i in range(len(corpora))}
    for _ in range(rounds):
        for i, corpus in enumerate(corpora):
            buffers = [memoryview(bytearray(corpus.response)) for _ in range(20 if corpus.kind == "raw" else 1)]
            limits = coalescing if corpus.kind == "coalesced" else LIMITS
            work = partial(open_and_close, corpus.codec) if corpus.kind == "codec alone" else partial(copy, limits=limits)
            taken[i].append(cpu_seconds(partial(deque, map(work, buffers), 0)) / len(buffers))
    return [statistics.median(taken[i]) for i in range(len(corpora))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--batch-bytes", type=int, default=1_000_000, help="of a batch before compression (default: as make bench)"
    )
    parser.add_argument("--codecs", nargs="+", default=["lz4", "zstd"], choices=[codec.name.lower() for codec in Codec])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--coalesce-bytes", type=int, default=1 << 20)
    options = parser.parse_args()
    batches = int(np.clip(4_000_000 // options.batch_bytes, 1, 2_000))
    corpora = [
        make_corpus(Codec[codec.upper()], record_bytes, kind, options.batch_bytes, batches)
        for codec in options.codecs
        for record_bytes in (1_000, 100, 60)
        for kind in KINDS
    ]
    coalescing = replace(LIMITS, coalesce_bytes=options.coalesce_bytes)
    seconds = measure(corpora, options.rounds, coalescing)
    print(f"{'codec':8}{'record bytes':>14}{'wire MB':>10}" + "".join(f"{kind + ' MB/s':>18}" for kind in KINDS))
    for i in range(0, len(corpora), len(KINDS)):
        corpus = corpora[i]
        row = f"{corpus.codec.name.lower():8}{corpus.record_bytes:14}{len(corpus.response) / 1e6:10.2f}"
        print(row + "".join(f"{len(corpora[j].response) / 1e6 / seconds[j]:18,.0f}" for j in range(i, i + len(KINDS))))
    for corpus, taken in zip(corpora, seconds, strict=True):
        if corpus.kind == "coalesced":
            made = copy(memoryview(bytearray(corpus.response)), coalescing)
            after = int(made.index.size_bytes[made.chosen].sum())
            print(
                f"{corpus.codec.name.lower()}, records of {corpus.record_bytes} bytes: {corpus.batches:,} batches of "
                f"{len(corpus.response) // corpus.batches:,} bytes became {len(made)}, at "
                f"{corpus.batches / taken:,.0f} a second; {after / len(corpus.response):.0%} of the bytes"
            )


if __name__ == "__main__":
    main()
