"""The small mirrors that are searched, each with one habit of its environment."""

from __future__ import annotations

from dataclasses import replace

from tests.model.source import Scenario

ONE_SLOT = Scenario(logs=("rr",), plan_sizes=(1,), layouts=((0,),))
"""One slot, two micro-batches: the smallest mirror in which anything can go wrong."""

TWO_SLOTS = Scenario(logs=("rm", "r"), plan_sizes=(1, 2))
"""Two slots, and an offset that is not a record."""

POISON = Scenario(logs=("rppr", "r"), plan_sizes=(2, 3))
"""Records that the target refuses, between others."""

TWO_PARTITIONS_IN_A_SLOT = Scenario(logs=("mr", "rr"), plan_sizes=(1,), layouts=((0, 0),))
"""The first transaction writes partition 1 alone, the second both: their receipts are in different partitions."""

SCENARIOS = {
    "one slot": ONE_SLOT,
    "two slots": TWO_SLOTS,
    "other boundaries after a restart": Scenario(),
    "slots move at a restart": replace(TWO_SLOTS, layouts=((0, 1), (0, 0))),
    "fewer slots at first": replace(TWO_SLOTS, layouts=((0, 0), (0, 1))),
    "slots stop early": replace(TWO_SLOTS, logs=("rr", "r"), plan_sizes=(2,), layouts=((0, 0), (0, 1)), stops_early=True),
    "idle between micro-batches": replace(TWO_SLOTS, quiet_after=0),
    "compaction after every decision": replace(ONE_SLOT, compacts=True),
    "written by Spark": replace(ONE_SLOT, is_spark_writer=True),
    "compacted by Spark": replace(ONE_SLOT, is_spark_writer=True, compacts=True),
    "receipts expire": replace(ONE_SLOT, keeps_receipts=False),
    "retention of seconds": replace(TWO_SLOTS, keeps_logs=False),
    "receipts expire, retention of seconds": replace(ONE_SLOT, keeps_receipts=False, keeps_logs=False),
    "markers of aborts are forgotten": replace(TWO_SLOTS, forgets_aborts=True),
    "slots move, markers of aborts are forgotten": replace(TWO_SLOTS, layouts=((0, 1), (0, 0)), forgets_aborts=True),
    "records are refused": POISON,
    "what was refused is released": replace(POISON, retries=True),
    "what was refused is released, markers of aborts are forgotten": replace(POISON, retries=True, forgets_aborts=True),
    "target partitions lose their leaders": replace(TWO_SLOTS, loses_leaders=True),
    "target partitions lose their leaders, one slot": replace(TWO_PARTITIONS_IN_A_SLOT, loses_leaders=True),
    "leaders are lost, markers of aborts are forgotten": replace(
        TWO_PARTITIONS_IN_A_SLOT, loses_leaders=True, forgets_aborts=True, has_zombies=False
    ),
    "leaders are lost, markers are forgotten": replace(
        TWO_PARTITIONS_IN_A_SLOT, loses_leaders=True, forgets_aborts=True, forgets_commits=True, has_zombies=False
    ),
    "an operator aborts partitions": replace(TWO_PARTITIONS_IN_A_SLOT, has_operator=True),
    "markers are forgotten, two partitions in a slot": replace(
        TWO_PARTITIONS_IN_A_SLOT, forgets_aborts=True, forgets_commits=True, has_zombies=False
    ),
    "the target is far away": replace(TWO_SLOTS, is_far=True),
    "the target is far away, two partitions in a slot": replace(TWO_PARTITIONS_IN_A_SLOT, is_far=True),
    "the target is far away, slots stop early": replace(
        TWO_SLOTS, logs=("rr", "r"), plan_sizes=(2,), layouts=((0, 0), (0, 1)), stops_early=True, is_far=True
    ),
    "the target is far away, its partitions lose their leaders": replace(
        TWO_PARTITIONS_IN_A_SLOT, loses_leaders=True, is_far=True
    ),
    "the target is far away, its brokers do not verify transactions": replace(
        TWO_SLOTS, is_far=True, verifies=False, has_zombies=False
    ),
    "markers are forgotten": replace(TWO_SLOTS, forgets_aborts=True, forgets_commits=True, has_zombies=False),
}
