"""Pure: the steps of an archive as points that it passes."""

from __future__ import annotations

from tests.faults.steps import SLOTS, Step

BETWEEN = Step(name="between two micro-batches", point="done.TakeDecision")

PLANNED = Step(name="1 Spark has planned", point="Planned")
TAKEN = Step(name="2 ownership checked", point="done.TakeDecision")
PRODUCED = Step(name="3 first batches taken", point="task.produced", after="done.TakeDecision")
STORED = Step(name="4 first slot stored", point="task.stored", after="done.TakeDecision")
LAST_STORED = Step(name="4 last slot stored", point="task.stored", nth=SLOTS, after="done.TakeDecision")
ANSWERED = Step(name="5 every slot answered", point="done.RunSlots")
DECIDED = Step(name="6 decided", point="done.Decide")
RETURNED = Step(name="7 not yet in Spark's checkpoint", point="Returned", after="done.Decide")
COMMITTED = Step(name="8 in Spark's checkpoint", point="Planned", after="done.Decide")

IN_MICRO_BATCH = (PLANNED, TAKEN, PRODUCED, STORED, LAST_STORED, ANSWERED, DECIDED, RETURNED, COMMITTED)
IN_TASKS = (PRODUCED, STORED, LAST_STORED)
IN_DELETION = (
    Step(name="deletion: DELETE_SEGMENT_STARTED", point="expire.started"),
    Step(name="deletion: rows copied", point="expire.copied"),
    Step(name="deletion: objects deleted", point="expire.deleted"),
    Step(name="deletion: DELETE_SEGMENT_FINISHED", point="expire.finished"),
)
IN_REGISTRATION = (
    Step(name="first rows of a new topic decided", point="first_rows.decided"),
    Step(name="first rows of a new topic settled", point="first_rows.settled"),
)
"""Passed when a topic appears, which the scene creates for them."""

ALL = (*IN_MICRO_BATCH, *IN_DELETION, *IN_REGISTRATION)
