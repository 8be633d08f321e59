"""Every parser of bytes that come from outside, each with inputs to begin with and the errors that it documents."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets_of_archives import ARCHIVES
from tests.fuzz.targets_of_batches import BATCHES
from tests.fuzz.targets_of_blocks import BLOCKS
from tests.fuzz.targets_of_responses import RESPONSES
from tests.fuzz.targets_of_texts import TEXTS

TARGETS: dict[str, Target] = {target.name: target for target in (*RESPONSES, *ARCHIVES, *BATCHES, *BLOCKS, *TEXTS)}
