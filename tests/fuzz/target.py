"""What is given hostile bytes, and what may come of it."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz.mutation import hostile_input

from shallow_mirror.types import TopicPartition

ORDERS_0 = TopicPartition("fuzz", 3)


@dataclass(frozen=True, slots=True)
class Target:
    """`run` gives an input to a parser and asserts what must hold of the result. `documented`: the parser's own errors."""

    name: str
    corpus: Sequence[bytes]
    run: Callable[[bytes], None]
    documented: tuple[type[Exception], ...] = ()

    def input(self, seed: int, number: int) -> bytes:
        """Return an input; the first ones are the corpus as it is."""
        if number < len(self.corpus):
            return self.corpus[number]
        return hostile_input(self.corpus, random.Random(f"{seed}/{self.name}/{number}"))


def chance_of(data: bytes) -> random.Random:
    """For arguments beside the bytes: the same bytes get the same ones again."""
    return random.Random(zlib.crc32(data))
