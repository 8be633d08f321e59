"""Classes of what a random archive can contain and a random restore can ask.

`NOT_YET` holds those in which the model of this generator is coarser than the package, so that a difference proves nothing: it
decides by other evidence between two decisions, takes topics out of a restore as a change, and does not know where a part of a
transaction ends without its marker. Tests of the package hold them. `run.py --all` includes them and lists the seeds.
"""

from __future__ import annotations

import enum


class Feature(enum.StrEnum):
    """Something that a check depends on. A check without a feature always counts."""

    TIME_OF_TOPIC = "a cut by time between the decisions around the first trace of a topic id or partition"
    TIME_OF_LINEAGE = "a cut by time between the decisions around the first trace of a lineage"
    TIME_OF_DESCRIPTION = "partitions and settings at a cut by time"
    ABORTED_AT_CUT = "an aborted record in front of the first newer one"
    READER_OF_RECREATED = "a reader of a topic that was created again"
    REBUILD_AFTER_EXPIRY = "a rebuild of an archive of which something has expired"
    WHOLE_BEHIND_ABORTED = "whole transactions behind an aborted transaction of the same producer"
    WHOLE_WITHOUT_MARKER = "whole transactions where the marker of one is not archived, or in a log of several lineages"
    OTHER_FILE = "a second start with another file"
    PRESERVED_START = "the begin of a preserved log whose first micro-batch has no record"


NOT_YET: frozenset[Feature] = frozenset(
    {
        Feature.TIME_OF_TOPIC,
        Feature.TIME_OF_LINEAGE,
        Feature.TIME_OF_DESCRIPTION,
        Feature.WHOLE_WITHOUT_MARKER,
        Feature.OTHER_FILE,
    }
)
