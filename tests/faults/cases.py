"""Several rounds in one scene, after which nothing may differ."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.rounds import Fault, Scene
from tests.faults.steps import Step

Case = tuple[Fault, Step]


def assert_nothing_differs(scene: Scene, cases: Sequence[Case]) -> list[str]:
    """How the mirror came out of each."""
    done = [scene.round(fault, step) for fault, step in cases]
    checked = [one.checked.result() for one in done]
    assert [
        (one.fault, one.step, both)
        for one, check in zip(done, checked, strict=True)
        if (both := (check.differences, one.left_behind)) != ((), ())
    ] == []
    assert sum(one.acknowledged for one in checked) > 0
    end = scene.finish()
    assert (end.differences, end.left_behind) == ((), ())
    assert end.records > 0
    return [one.ending for one in done]
