"""Pure: rules of target topics: the settings of a new one, and the problems of one that exists.

Sentences lack their beginning, "target topic X", so that topics with the same problem can be reported together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shallow_mirror.broker import TopicMetadata
from shallow_mirror.errors import TopicSettingsError
from shallow_mirror.plurals import counted
from shallow_mirror.types import TargetPartition

COPIED = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
)
"""Settings of the source topic that its target topic gets, when it is created and, with `topics.configs: sync`, from then on."""

FORCED: Mapping[str, str] = {"compression.type": "producer", "message.timestamp.type": "CreateTime"}
"""Settings without which batches would not stay as they are."""

FORCED_WHERE_PRESERVED: Mapping[str, str] = {"unclean.leader.election.enable": "false"}
"""Settings of a new target topic whose records keep their offsets: its log must not lose acknowledged records."""

TIMESTAMP_LIMITS = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
LIMIT_BEFORE_3_6 = "message.timestamp.difference.max.ms"
NO_LIMIT_MS = (1 << 63) - 1
"""Value of a limit of record timestamps that excludes none; also a retention that deletes nothing by age."""

OF_PRESERVED = (*FORCED, *FORCED_WHERE_PRESERVED, *TIMESTAMP_LIMITS, "cleanup.policy")
"""Settings of a target topic on which preserved offsets depend."""


def configs_of_new(source: Mapping[str, str], *, is_preserved: bool = False) -> dict[str, str]:
    """Return the settings of a new target topic, given those of its source topic (none with `topics.configs: off`)."""
    copied = {name: source[name] for name in COPIED if name in source}
    forced = {**FORCED, **(FORCED_WHERE_PRESERVED if is_preserved else {})}
    return {**copied, **forced, **dict.fromkeys(TIMESTAMP_LIMITS, str(NO_LIMIT_MS))}


def bounded_replicas(replication_factor: int | None, brokers: int) -> int | None:
    """None: as many as the target gives."""
    return None if replication_factor is None else min(replication_factor, max(1, brokers))


def are_limits_unknown(problems: Iterable[str]) -> bool:
    """Whether a target refused new topics because it is older than Kafka 3.6, which split the limit in two."""
    return any(name in problem for problem in problems for name in TIMESTAMP_LIMITS)


def before_3_6(settings: Mapping[str, str]) -> dict[str, str]:
    """`configs_of_new` for such a target."""
    kept = {name: value for name, value in settings.items() if name not in TIMESTAMP_LIMITS}
    return {**kept, LIMIT_BEFORE_3_6: str(NO_LIMIT_MS)}


def missing_problem(source: str, partitions: int) -> str:
    """Return the problem of a target topic that does not exist and is not created."""
    return (
        f"(for source topic {source}) does not exist and topics.create is false: "
        f"create it with at least {counted(partitions, 'partition')}, set topics.create: true, or exclude {source} "
        "(topics.exclude)"
    )


def problems_of(source: str, partitions: int, found_partitions: int, settings: Mapping[str, str]) -> list[str]:
    """Why nothing can be copied to it. `partitions` of the source topic, `found_partitions` and `settings` of the target's."""
    problems = []
    if found_partitions < partitions:
        problems.append(
            f"has fewer partitions ({found_partitions}) than source topic {source} ({partitions}): add partitions to the target "
            f"topic (they are matched by number), or exclude {source} (topics.exclude)"
        )
    compression = settings.get("compression.type", "producer")
    if compression != "producer":
        problems.append(
            f"has compression.type={compression}: the broker would open and recompress every batch. "
            "Set compression.type=producer on it"
        )
    return problems


def preserving_problems(settings: Mapping[str, str], source: Mapping[str, str], *, is_begun: bool) -> list[str]:
    """Return why no record could keep its offset on a target topic with these settings. `source`: those of the source topic.

    `is_begun`: records were copied to it with preserved offsets. Translated offsets are no remedy then: the setting may have
    changed records that no decision names yet, with which the change to translated offsets is refused.
    """
    instead = "" if is_begun else ", or use topics.offsets: translated for it"
    problems = [
        f"has {name}={settings[name]}: with preserved offsets it has to be {wanted}. Set it{instead}"
        for name, wanted in {"message.timestamp.type": "CreateTime", **FORCED_WHERE_PRESERVED}.items()
        if settings.get(name, wanted) != wanted
    ]
    problems += [
        f"has {name}={settings[name]}: brokers would refuse old records, and the fillers beside them. Set it to {NO_LIMIT_MS}"
        f"{instead}"
        for name in TIMESTAMP_LIMITS
        if int(settings.get(name, NO_LIMIT_MS)) < NO_LIMIT_MS
    ]
    if TIMESTAMP_LIMITS[0] not in settings:
        problems.append(
            "is on brokers before Kafka 3.6, which forget the mirror's producer id while old records are copied: upgrade them"
            f"{instead}"
        )
    if is_compacted(settings) != is_compacted(source):
        problems.append(
            f"has cleanup.policy={settings.get('cleanup.policy')}, its source topic {source.get('cleanup.policy')}: with "
            f"preserved offsets both have to be compacted, or neither. Set it to {source.get('cleanup.policy')}{instead}"
        )
    return problems


def changed_problem(settings: Mapping[str, str], *, is_compacted: bool) -> str | None:
    """Return why a topic that was fit for preserved offsets no longer is; None if it is. `is_compacted`: as it was then."""
    at_start = {"cleanup.policy": "compact" if is_compacted else "delete"}  # fillers have a key, or none, for that
    problems = problems_of("", 0, 0, settings) + preserving_problems(settings, at_start, is_begun=True)
    return problems[0] if problems else None


def changed_error(problems: Mapping[str, str]) -> TopicSettingsError:
    """Return the error of target topics that are no longer fit. `problems`: whole sentences without a full stop, by topic."""
    return TopicSettingsError(
        [
            f"{problem}. It was changed while the mirror ran, and nothing more is written to the topic. Start the mirror again "
            "once the topic is as before (with on_error: isolate it continues by itself), and then run `shallow-mirror verify "
            "CONF`: what was written since the change may have other times, or show fillers. Before that, records of the last "
            "micro-batch are not in the map, and verify reports them as another writer's"
            for problem in problems.values()
        ],
        list(problems),
    )


def kept_policy_problem(target: str, kept: str, policy: str) -> str:
    """Return a sentence for a target topic with preserved offsets whose source topic has got another cleanup policy."""
    return (
        f"target topic {target} keeps cleanup.policy={kept}: with preserved offsets it may not change while the mirror runs. "
        f"Stop the mirror once it has no lag there, set cleanup.policy={policy}, and start it again"
    )


def is_compacted(settings: Mapping[str, str]) -> bool:
    return "compact" in settings.get("cleanup.policy", "delete").split(",")


_NEW_START = "Mirror {source} from its start with another mirror id, tables and checkpoint, or exclude it (topics.exclude)"


def other_target_problem(source: str, before: TargetPartition, target: str, existing: TopicMetadata | None) -> str | None:
    """Return a sentence if the records copied to `before` are not in the topic `target` that would get the rest."""
    if before.topic != target:
        return (
            f"source topic {source} was mirrored to {before.topic} until now, topics.target_name makes it {target}: "
            f"set topics.target_name back. {_NEW_START.format(source=source)}"
        )
    if existing is None or existing.topic_id != before.topic_id:
        return gone_problem(source, before, "" if existing is None else existing.topic_id)
    return None


def gone_problem(source: str, before: TargetPartition, topic_id: str) -> str:
    """Return a sentence for a target topic that is gone. `topic_id`: of the topic that has its name now; "": there is none."""
    remedy = f"{_NEW_START.format(source=source)} or forget it (`shallow-mirror forget CONF {source} --apply`)"
    if not topic_id:
        return f"target topic {before.topic} (for {source}) was deleted, with what was copied to it. {remedy}"
    return (
        f"target topic {before.topic} (for {source}) was deleted and created again (topic id {before.topic_id} became "
        f"{topic_id}), without what was copied to it before. {remedy}"
    )


def is_stamping(settings: Mapping[str, str]) -> bool:
    return settings.get("message.timestamp.type") == "LogAppendTime"


STAMPING = "has message.timestamp.type=LogAppendTime: records get the target's append time"
STAMPING_REMEDY = "Set message.timestamp.type=CreateTime on it to keep theirs; records copied before keep the target's time"


def config_warnings(settings: Mapping[str, str], source: Mapping[str, str]) -> list[str]:
    """Return settings that make the copy differ from its source, or slower for some batches, given both topics' settings."""
    limits = [] if is_stamping(settings) else _time_doubts(settings)
    return record_doubts(settings, source) + limits + _cleaning_doubts(settings, source)


def record_doubts(settings: Mapping[str, str], source: Mapping[str, str]) -> list[str]:
    """Return settings that change records or batches when they are written, given both topics' settings."""
    doubts = [f"{STAMPING}. {STAMPING_REMEDY}"] if is_stamping(settings) else []
    most, source_most = (int(configs.get("max.message.bytes", 0)) for configs in (settings, source))
    if most < source_most:
        doubts.append(
            f"has max.message.bytes={most}, below the source topic's {source_most}: a larger batch cannot be copied as it is. "
            f"Set max.message.bytes={source_most}"
        )
    return doubts


def _time_doubts(settings: Mapping[str, str]) -> list[str]:
    return [
        f"has {name}={settings[name]}: records with timestamps beyond that are rejected. Set {name}={NO_LIMIT_MS}"
        for name in (*TIMESTAMP_LIMITS, LIMIT_BEFORE_3_6)
        if int(settings.get(name, NO_LIMIT_MS)) != NO_LIMIT_MS
    ]


def _cleaning_doubts(settings: Mapping[str, str], source: Mapping[str, str]) -> list[str]:
    policy, source_policy = (set(configs.get("cleanup.policy", "delete").split(",")) for configs in (settings, source))
    doubts = []
    if "compact" in policy - source_policy:
        doubts.append(
            "has cleanup.policy=compact, the source topic has not: records without a key are rejected, and older "
            "records of a key are removed. Set cleanup.policy=delete"
        )
    if "compact" in source_policy - policy:
        doubts.append(
            "is not compacted, the source topic is: it keeps records that compaction removes there. Set cleanup.policy=compact "
            "once the mirror has no lag there: records without a key are rejected then"
        )
    keeps, source_keeps = (_retention_ms(configs) for configs in (settings, source))
    if "delete" in policy and keeps < (source_keeps if "delete" in source_policy else NO_LIMIT_MS):
        doubts.append(
            f"has retention.ms={keeps}, less than the source topic's: it deletes by the timestamps of records, "
            "so old records soon after they were copied"
        )
    return doubts


def _retention_ms(settings: Mapping[str, str]) -> int:
    retention_ms = int(settings.get("retention.ms", -1))
    return NO_LIMIT_MS if retention_ms < 0 else retention_ms
