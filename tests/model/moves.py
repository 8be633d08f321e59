"""What a scheduler may choose from: the default move, and everything that can go otherwise."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from tests.model import effects
from tests.model.target_cluster import Markers


class Delivery(enum.Enum):
    OK = "answered"
    REPLY_LOST = "applied, reply lost"
    LOST = "request lost"
    LATE = "delayed"
    NOT_DURABLE = "refused by a coordinator whose newer epoch does not last"


class Kind(enum.Enum):
    """Kinds of moves. A process that is `PERFORM`ed is the one that runs on by default."""

    PERFORM = "perform"
    TASK = "task"
    START = "start"
    CRASH = "crash"
    SWITCH = "switch"
    LOSE_TASK = "lose task"
    ZOMBIE_STEP = "zombie step"
    ZOMBIE = "zombie runs on"
    LETTER = "late request arrives"
    TIME_OUT = "time out"
    RELEASE = "held markers are written"
    FORGET = "held markers are forgotten"
    ABORT_PARTITION = "an operator aborts a transaction in one partition"
    LOSE_LEADER = "a target partition loses its leader"
    ELECT_LEADERS = "all target partitions have leaders"
    EXPIRE = "receipts expire"
    TRUNCATE = "retention"
    LOSE_CHECKPOINT = "Spark checkpoint lost"
    REWIND_CHECKPOINT = "Spark checkpoint restored from its beginning"


class Move(NamedTuple):
    """`who`: the number of a process, task or letter, or a transactional id; where an operator aborts, that and a partition."""

    kind: Kind
    who: Any = None
    delivery: Delivery = Delivery.OK
    markers: Markers = Markers.WRITTEN

    def __str__(self) -> str:
        words = [self.kind.value, *([] if self.who is None else [str(self.who)])]
        if self.delivery is not Delivery.OK:
            words.append(f"({self.delivery.value})")
        if self.markers is not Markers.WRITTEN:
            words.append(f"(markers {self.markers.value})")
        return " ".join(words)


_LOST_AND_LATE = (Delivery.REPLY_LOST, Delivery.LOST, Delivery.LATE)
_FAULTS: dict[type, tuple[Delivery, ...]] = {
    effects.Look: (Delivery.LOST,),
    effects.Commit: _LOST_AND_LATE,
    effects.InitProducerId: (Delivery.REPLY_LOST, Delivery.LATE),
    effects.AddToTxn: (Delivery.REPLY_LOST, Delivery.LATE),
    effects.Produce: _LOST_AND_LATE,
    effects.SetAside: _LOST_AND_LATE,
    effects.WriteReceipt: (Delivery.REPLY_LOST, Delivery.LATE),
    effects.EndTxn: (Delivery.REPLY_LOST, Delivery.LATE, Delivery.NOT_DURABLE),
}
HELD_MARKERS = (Markers.HELD, Markers.FIRST_HELD)
FORGOTTEN_MARKERS = (Markers.FORGOTTEN, Markers.FIRST_FORGOTTEN, Markers.LAST_FORGOTTEN)


def faults_of(request: effects.Effect | None) -> tuple[Delivery, ...]:
    """How it may fail to be answered. Questions without an effect are repeated by the client: nothing comes of that."""
    return _FAULTS.get(type(request), ())
