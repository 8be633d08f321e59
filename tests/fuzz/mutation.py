"""Hostile inputs out of good ones: the same seed, target and number make the same bytes again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.support.record_batches import varint

MOST_BYTES = 1 << 18
"""Of an input: repeats of repeats would grow for ever."""

_MOST_CHANGES = 6
_BOUNDS = [0, 1, -1, 2, -2, 60, 61, 62, 127, 128, 255, 256, 32767, 32768, 65535, 65536]
_BOUNDS += [sign * (1 << bits) + more for bits in (20, 24, 27, 28, 30, 31, 32, 62, 63) for sign in (1, -1) for more in (-1, 0, 1)]
_WORDS = [
    b"1e999",
    b"-1e999",
    b"NaN",
    b"null",
    b"true",
    b"-1",
    b"0",
    b'""',
    b"[]",
    b"{}",
    b"1" * 5_000,
    b'"1.5"',
    b"\xed\xa0\x80",
]

Change = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def hostile_input(corpus: Sequence[bytes], chance: random.Random) -> bytes:
    """One of `corpus`, changed; sometimes not at all."""
    made = bytearray(chance.choice(corpus))
    for _ in range(min(chance.randrange(_MOST_CHANGES), chance.randrange(_MOST_CHANGES))):
        chance.choice(_CHANGES)(made, chance, corpus)
        del made[MOST_BYTES:]
    return bytes(made)


def _flip_bits(made: bytearray, chance: random.Random, corpus: Sequence[bytes]) -> None:
    for _ in range(chance.randint(1, 4) if made else 0):
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)


def _change_bytes(made: bytearray, chance: random.Random, corpus: Sequence[bytes]) -> None:
    start, size = _piece(made, chance, 8)
    made[start : start + size] = chance.randbytes(size)


def _cut(made: bytearray, chance: random.Random, corpus: Sequence[bytes]) -> None:
    start, size = _piece(made, chance, len(made))
    if chance.random() < 0.5:
        del made[start:]
    else:
        del made[start : start + size]


def _repeat(made: bytearray, chance: random.Random, corpus: Sequence[bytes]) -> None:
    start, size = _piece(made, chance, chance.choice([1, 16, 200]))
    times = chance.choice([1, 1, 2, 5, 10, 1_000])
    made[start:start] = made[start : start + size] * times


def _splice(made: bytearray, chance: random.Random, corpus: Sequence[bytes]) -> None:
    donor = chance.choice(corpus)
    taken, size = _piece(donor, chance, len(donor))
    start, replaced = _piece(made, chance, size)
    made[start : start + replaced] = donor[taken : taken + size]


def _put_fixed(made: bytearray, chance: random.Random, corpus: Sequence[bytes]) -> None:
    """Write a number at the edge of a range, in the width of a field."""
    width = chance.choice([1, 2, 4, 8])
    value = chance.choice(_BOUNDS) & ((1 << 8 * width) - 1)
    start = chance.randrange(len(made) + 1)
    made[start : start + width] = value.to_bytes(width, chance.choice(["big", "big", "little"]))


def _put_varint(made: bytearray, chance: random.Random, corpus: Sequence[bytes]) -> None:
    """Instead of a byte or two: signed or not, as short as can be or longer, at times without an end."""
    value = chance.choice(_BOUNDS) & ((1 << 64) - 1)
    encoded = bytearray(varint((value >> 1) ^ -(value & 1)))
    if chance.random() < 0.2:
        encoded[-1] |= 0x80
        encoded += chance.choice([b"\x00", b"\x80" * 12, b"\x80\x00"])
    start, replaced = _piece(made, chance, 2)
    made[start : start + replaced] = encoded


def _put_word(made: bytearray, chance: random.Random, corpus: Sequence[bytes]) -> None:
    """Replace a piece with a word that texts may hold."""
    start, replaced = _piece(made, chance, 12)
    made[start : start + replaced] = chance.choice(_WORDS)


def _piece(data: bytes | bytearray, chance: random.Random, most: int) -> tuple[int, int]:
    """Where a piece of `data` begins, and its size, `most` at the most."""
    start = chance.randrange(len(data) + 1)
    return start, chance.randint(0, min(most, len(data) - start))


_CHANGES: list[Change] = [
    *(_flip_bits, _flip_bits, _change_bytes, _cut, _repeat, _splice),
    *(_put_fixed, _put_fixed, _put_varint, _put_varint, _put_word),
]
