"""While a test of the model runs, the product asks the model."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.model.programs import Library
from tests.model.seams import product_over_ports


@pytest.fixture(autouse=True)
def over_ports() -> Iterator[None]:
    """For each test anew: another process of the tests may be given something else in between."""
    logging.disable(logging.WARNING)
    with product_over_ports():
        yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def library() -> Library:
    return Library()
