"""Names of objects are read back as they were written; other names are no names of objects."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from tests.archive_format.archived_rows import NAME

from shallow_mirror.archive_format.object_names import ObjectName, prefix_of_run

_NAMES = st.builds(
    ObjectName,
    archive_id=st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", fullmatch=True),
    run_epoch=st.integers(0, (1 << 31) - 1),
    decision=st.integers(0, (1 << 32) - 1),
    slot=st.integers(0, (1 << 31) - 1),
    retention_class=st.integers(0, 10_000),
    try_id=st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
)


@pytest.mark.slow
@given(_NAMES)
def test_a_name_is_read_back(name: ObjectName) -> None:
    assert ObjectName.parse(str(name)) == name


@given(st.text())
def test_a_foreign_name_is_none_or_canonical(text: str) -> None:
    name = ObjectName.parse(text)
    assert name is None or str(name) == text


def test_a_name_holds_what_identifies_an_orphan() -> None:
    assert str(NAME) == "backup/00000003/0000000007-0002-01-0123abcd.batches"
    assert str(NAME).startswith(prefix_of_run("backup", 3))
    assert NAME.version == (3 << 32) | 7


def test_names_of_a_run_sort_by_decision() -> None:
    names = [
        str(ObjectName(archive_id="a", run_epoch=1, decision=n, slot=0, retention_class=0, try_id="00000000"))
        for n in (9, 10, 1 << 31)
    ]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "backup/00000003/0000000007-0002-01-0123abcd.batches.tmp",
        "other/backup/00000003/0000000007-0002-01-0123abcd.batches",
        "backup/3/0000000007-0002-01-0123abcd.batches",
        "backup/00000003/0000000007-0002-01-0123ABCD.batches",
        "backup/00000003/0000000007-00002-01-0123abcd.batches",
        "backup/00000003/4294967296-0002-01-0123abcd.batches",
        "../00000003/0000000007-0002-01-0123abcd.batches",
        "backup/0000000\u0663/0000000007-0002-01-0123abcd.batches",
        "backup/00000003/0000000007-0002-01-0123abcd.batches\n",
    ],
)
def test_foreign_names(text: str) -> None:
    assert ObjectName.parse(text) is None


@pytest.mark.parametrize(
    ("archive_id", "slot", "try_id"), [("..", 0, "00000000"), ("a/b", 0, "00000000"), ("a", -1, "00000000"), ("a", 0, "xyz")]
)
def test_a_name_that_could_not_be_read_back_is_not_made(archive_id: str, slot: int, try_id: str) -> None:
    with pytest.raises(ValueError, match="not a name of an archive's object"):
        ObjectName(archive_id=archive_id, run_epoch=1, decision=1, slot=slot, retention_class=0, try_id=try_id)
