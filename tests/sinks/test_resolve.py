from __future__ import annotations

import pytest

from shallow_mirror.sinks.resolve import LogEvidence, TxnFate, judge_log

OURS, ABORTED, OPEN, NOTHING = LogEvidence.OURS, LogEvidence.OURS_ABORTED, LogEvidence.OPEN, LogEvidence.NOTHING


@pytest.mark.parametrize(
    ("evidence", "fate"),
    [
        ((), TxnFate.UNDECIDABLE),
        ((NOTHING, OURS), TxnFate.COMMITTED),
        ((OPEN, OURS), TxnFate.COMMITTED),
        ((OPEN, ABORTED), TxnFate.NOT_COMMITTED),
        ((OPEN, OPEN), TxnFate.NOT_COMMITTED),
        ((OPEN, NOTHING), TxnFate.UNDECIDABLE),
    ],
)
def test_one_marker_speaks_for_all_partitions_and_no_marker_anywhere_means_that_nobody_saw_it(
    evidence: tuple[LogEvidence, ...], fate: TxnFate
) -> None:
    assert judge_log(evidence) is fate
