"""Compressed blocks: each decoder with damaged frames, bombs and lying lengths, under small and large bounds."""

from __future__ import annotations

import struct
from functools import partial

from tests.fuzz.hostile_batches import blocks
from tests.fuzz.target import Target, chance_of
from tests.fuzz.targets_of_batches import MAX_OPENED_BYTES
from tests.support.record_encoders import ENCODERS

from shallow_mirror.wire.records import CorruptBlockError, decompress
from shallow_mirror.wire.records.compression import BlockTooLargeError, fix_lz4_checksum

_BOMB_BYTES = 24 << 20


def opened(name: str, data: bytes) -> None:
    bound = chance_of(data).choice([0, 100, 1 << 16, MAX_OPENED_BYTES])
    assert len(decompress(memoryview(data), ENCODERS[name][0], bound)) <= bound


def _lz4_with_checksum(data: bytes) -> None:
    opened("lz4", bytes(fix_lz4_checksum(memoryview(data))))


def _blocks(name: str) -> list[bytes]:
    _, encode = ENCODERS[name]
    bomb = b"" if name == "none" else encode(bytes(_BOMB_BYTES // (40 if "snappy" in name else 1)))
    frames = [encode(block) for block, _, _ in blocks()]
    return [*frames, encode(b""), frames[0] + frames[1], bomb]


_LYING_SNAPPY = [b"\xff\xff\xff\xff\x0f" + bytes(20), b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, 0x7FFFFFFF) + bytes(9)]

BLOCKS = [
    *(
        Target(
            f"block of {name}",
            [*_blocks(name), *(_LYING_SNAPPY if "snappy" in name else [])],
            partial(opened, name),
            (CorruptBlockError, BlockTooLargeError),
        )
        for name in ENCODERS
    ),
    Target("block of lz4, right header", _blocks("lz4"), _lz4_with_checksum, (CorruptBlockError, BlockTooLargeError)),
]
