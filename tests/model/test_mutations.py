"""The search is shown to find what broke earlier versions of the protocol."""

from __future__ import annotations

import pytest
from tests.model.mutations import PLANTED, Planted, planted
from tests.model.programs import Library
from tests.model.search import Search

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.patch.__name__, marks=pytest.mark.long if number % 2 else ())
        for number, bug in enumerate(PLANTED)
    ],
)
def test_a_planted_bug_is_found(bug: Planted) -> None:
    with planted(bug.patch):
        result = Search(Library(), bug.scenario, bug.deviations, allows=bug.allows).run()
    assert result.finding is not None
    assert bug.leads_to in result.finding.violation
