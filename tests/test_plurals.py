from __future__ import annotations

import pytest

from shallow_mirror.plurals import counted


@pytest.mark.parametrize(
    ("count", "noun", "plural", "message"),
    [
        (0, "record", None, "0 records"),
        (1, "record", None, "1 record"),
        (1_200, "batch", None, "1,200 batches"),
        (1, "batch", None, "1 batch"),
        (2, "copy", "copies", "2 copies"),
        (None, "offset", None, "? offsets"),
    ],
)
def test_a_count_has_its_noun_in_the_right_number(count: int | None, noun: str, plural: str | None, message: str) -> None:
    assert counted(count, noun, plural) == message
