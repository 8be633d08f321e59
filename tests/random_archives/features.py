"""Classes of what a random archive can contain and a random restore can ask: those that are known to fail are left out.

`NOT_YET` is to be emptied: a class leaves it with the change that makes it right. `run.py --all` includes the classes of `NOT_YET`
as well and lists the seeds that find them.
"""

from __future__ import annotations

import enum


class Feature(enum.StrEnum):
    """Something that a check depends on. A check without a feature always counts."""

    TIME_OF_TOPIC = "a cut by time in front of a topic's deletion"
    TIME_OF_LINEAGE = "a cut by time in front of a truncation"
    TIME_OF_DESCRIPTION = "partitions and settings at a cut by time"
    ABORTED_AT_CUT = "an aborted record in front of the first newer one"
    READER_OF_RECREATED = "a reader of a topic that was created again"
    REBUILD_AFTER_EXPIRY = "a rebuild of an archive of which something has expired"
    WHOLE_BEHIND_ABORTED = "whole transactions behind an aborted transaction of the same producer"
    OTHER_FILE = "a second start with another file"
    PRESERVED_START = "the begin of a preserved log whose first micro-batch has no record"


NOT_YET: frozenset[Feature] = frozenset()
