"""Pure: the corpora: which record batches each is made of. The same seed makes the same bytes.

A corpus is a few dozen to a few hundred distinct batches, each compressed once and written many times: every copier works
batch by batch, so none can gain by the repetition.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.names import known_names
from shallow_mirror.wire import Codec, build_batch
from shallow_mirror.wire.protocol.primitives import uvarint
from shallow_mirror.wire.records.compression import compress

PARTITIONS = 4
FIRST_TIMESTAMP_MS = 1_700_000_000_000

_VALUE_BYTES = 1000
_RANDOM_SHARE = 0.44
"""Of a value's characters. With it zstd brings a block to about 0.34 and lz4 to about 0.46 of its size."""

_FILLING = b'","status":"accepted","currency":"EUR","channel":"web","warehouse":"north","note":"lorem ipsum dolor sit amet" '


@dataclass(frozen=True, slots=True)
class Corpus:
    """`block_bytes`: least and most of a batch's records before compression. `batch_bytes`: what their batches must come to.

    `is_messy`: transactions, aborted ones among them, and holes as compaction leaves them, between plain batches.
    """

    name: str
    codec: Codec
    block_bytes: tuple[int, int]
    distinct_batches: int
    batch_bytes: tuple[int, int]
    is_messy: bool = False
    partitions: int = PARTITIONS

    @property
    def codec_name(self) -> str:
        """As in `compression.type`."""
        return self.codec.name.lower()


CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus("zstd-big", Codec.ZSTD, (990_000, 1_000_000), 64, (310_000, 370_000)),
        Corpus("lz4-big", Codec.LZ4, (990_000, 1_000_000), 64, (430_000, 490_000)),
        Corpus("uncompressed", Codec.NONE, (480_000, 488_000), 64, (470_000, 500_000)),
        Corpus("zstd-16k", Codec.ZSTD, (41_000, 44_000), 400, (13_500, 16_500)),
        Corpus("lz4-small", Codec.LZ4, (7_500, 9_000), 800, (3_500, 4_600)),
        Corpus("lz4-small-wide", Codec.LZ4, (7_500, 9_000), 800, (3_500, 4_600), partitions=16),
        Corpus("one-partition", Codec.ZSTD, (990_000, 1_000_000), 64, (310_000, 370_000), partitions=1),
        Corpus("messy", Codec.LZ4, (4_500, 200_000), 200, (100, 110_000), is_messy=True),
    )
}


def chosen_corpora(names: Sequence[str]) -> list[Corpus]:
    """Raise ConfigError with every name that is not a corpus."""
    return [CORPORA[name] for name in known_names("corpus", names, CORPORA)]


@dataclass(frozen=True, slots=True)
class MadeBatch:
    """`block` are its records before compression."""

    records: bytes
    records_count: int
    block_bytes: int


def make_batches(corpus: Corpus) -> Iterator[MadeBatch]:
    """Yield the distinct batches of a corpus."""
    chance = random.Random(corpus.name)
    for number in range(corpus.distinct_batches):
        yield _batch(corpus, FIRST_TIMESTAMP_MS + 1000 * number, chance)


def _batch(corpus: Corpus, timestamp_ms: int, chance: random.Random) -> MadeBatch:
    wanted = chance.randint(*corpus.block_bytes)
    block, count = bytearray(), 0
    while len(block) < wanted:
        size = min(_VALUE_BYTES, max(wanted - len(block), _VALUE_BYTES // 4))
        block += _record(count, _key(corpus, chance), size, chance)
        count += 1
    made = build_batch(
        compress(memoryview(bytes(block)), corpus.codec),
        attributes=corpus.codec,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms + count - 1,
        records_count=count,
        last_offset_delta=count - 1,
    )
    return MadeBatch(made, count, len(block))


def _key(corpus: Corpus, chance: random.Random) -> bytes:
    """Those of the messy corpus repeat, so that compaction has something to remove."""
    return b"%08d" % chance.randrange(20_000 if corpus.is_messy else 10**8)


def _record(delta: int, key: bytes, value_bytes: int, chance: random.Random) -> bytes:
    """Build a record a millisecond later than the one before it, with a header on every fourth."""
    random_part = base64.urlsafe_b64encode(chance.randbytes(value_bytes))[: int(value_bytes * _RANDOM_SHARE)]
    value = (b'{"id":"' + random_part + _FILLING * (value_bytes // len(_FILLING)))[: value_bytes - 1] + b"}"
    headers = _signed(1) + _sized(b"trace") + _sized(b"%08x" % chance.randrange(1 << 32)) if delta % 4 == 0 else _signed(0)
    body = b"\0" + _signed(delta) + _signed(delta) + _sized(key) + _sized(value) + headers
    return _signed(len(body)) + body


def _signed(number: int) -> bytes:
    return uvarint(number * 2)


def _sized(data: bytes) -> bytes:
    return _signed(len(data)) + data
