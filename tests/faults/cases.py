"""Several rounds in one scene, after which nothing may differ."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.rounds import Fault, Scene
from tests.faults.steps import Step

Case = tuple[Fault, Step]


def assert_nothing_differs(scene: Scene, cases: Sequence[Case]) -> list[str]:
    """How the mirror came out of each."""
    done = [scene.round(fault, step) for fault, step in cases]
    checked = [case.checked.result() for case in done]
    assert [
        (case.fault, case.step, both)
        for case, check in zip(done, checked, strict=True)
        if (both := (check.differences, case.left_behind)) != ((), ())
    ] == [], scene.running_or_ended().log()[-4000:]
    assert sum(result.acknowledged for result in checked) > 0
    end = scene.finish()
    assert (end.differences, end.left_behind) == ((), ())
    assert end.records > 0
    return [case.ending for case in done]
