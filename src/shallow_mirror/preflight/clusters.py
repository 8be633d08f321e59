"""Driver: facts of both clusters besides their topics: versions, settings of brokers, rights. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from shallow_mirror.broker import MAX_NOTE_BYTES, Cluster
from shallow_mirror.broker.admin import Operation, Permissions, missing_slot_permissions
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION, is_forbidden
from shallow_mirror.broker.produce import METADATA_LIMIT, read_receipts, receipt_limit_problem
from shallow_mirror.broker.produce.txn import describe_txn, timeout_problem
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import GroupSettings
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError, OlderTablesError, RetriableError
from shallow_mirror.groups.group_client import GROUP_LOG
from shallow_mirror.preflight.findings import Finding, Level
from shallow_mirror.preflight.targets import TargetPlan
from shallow_mirror.sinks.kafka.protocol import refuse_used_ids, require_known_receipts
from shallow_mirror.streaming.runs import ON_SOURCE_TOPICS, ON_TARGET_TOPICS, TO_ADD_PARTITIONS, TO_CREATE, missing_on_topic

_MAX_TIMEOUT = "transaction.max.timeout.ms"

_PURPOSE = "control"
_TXN_TOPIC = "__transaction_state"


def broker_problems(
    cluster: Cluster, alias: str, node_ids: Iterable[int], deadline: Callable[[], Deadline], *, is_target: bool
) -> Iterator[Finding]:
    """Every broker is spoken to: any of them may lead, or coordinate."""
    for node_id in node_ids:
        subject = f"cluster {alias}, broker {node_id}"
        try:
            missing = cluster.connection(node_id, _PURPOSE, deadline()).missing_apis
        except ConfigError as error:
            yield from (Finding(Level.STOPS, subject, problem) for problem in error.problems)
        except RetriableError as error:
            yield Finding(Level.UNKNOWN, subject, f"cannot be reached now: {error}")
        else:
            if "DescribeTransactions" in missing and is_target:
                what = "is older than Kafka 3.0: whether others use this mirror's transactional ids cannot be determined"
                yield Finding(Level.DOUBT, subject, what)


def read_broker_settings(
    cluster: Cluster, node_ids: Iterable[int], deadline: Callable[[], Deadline]
) -> tuple[dict[int, Mapping[str, str]], dict[int, str]]:
    """By broker, and why of others they are not known."""
    settings: dict[int, Mapping[str, str]] = {}
    refused: dict[int, str] = {}
    for node_id in node_ids:
        try:
            settings[node_id] = cluster.broker_configs(node_id, deadline())
        except (ConfigError, RetriableError) as error:
            refused[node_id] = str(error)
    return settings, refused


def slot_problems(
    target: Cluster,
    alias: str,
    names: Sequence[str],
    offset_map: OffsetMap | None,
    ask_controls: Callable[[], None],
    deadline: Callable[[], Deadline],
) -> Iterator[Finding]:
    """Whether we may use the transactional ids and groups `names`, and who else does. `offset_map` None: there is none yet.

    `ask_controls` raises OlderTablesError if the target knows of a command that the tables do not have.

    Looking for a coordinator creates its internal topic, so other users are not looked up while that topic may not exist.
    """
    missing = missing_slot_permissions(target, names[0], deadline())
    yield from (Finding(Level.STOPS, f"cluster {alias}", what) for what in missing)
    if missing:
        return
    listed = target.metadata([_TXN_TOPIC, GROUP_LOG], deadline()).topics

    def ask_txns() -> None:
        if offset_map is None:
            refuse_used_ids(target, names, deadline())
        else:
            describe_txn(target, names[0], deadline())

    def ask_receipts() -> None:
        recorded = None if offset_map is None else offset_map.recorded()
        if offset_map is None or recorded is None:
            read_receipts(target, names[0], deadline())
        else:
            require_known_receipts(target, names, offset_map.map_id, recorded, offset_map.run_id_of, deadline())

    for topic, ask in ((_TXN_TOPIC, ask_txns), (GROUP_LOG, ask_receipts), (GROUP_LOG, ask_controls)):
        code = listed[topic].error_code if topic in listed else UNKNOWN_TOPIC_OR_PARTITION
        if is_forbidden(code) and offset_map is None:
            what = f"whether another application uses {names[0]} is not known: topic {topic} is not visible to the mirror's user"
            yield Finding(Level.UNKNOWN, f"cluster {alias}", what)
            continue
        if code and not is_forbidden(code):
            continue
        try:
            ask()
        except BrokerTooOldError:
            continue  # reported for every broker
        except ConfigError as error:
            yield from (Finding(Level.STOPS, f"cluster {alias}", problem) for problem in error.problems)
        except OlderTablesError as error:
            yield Finding(Level.STOPS, f"cluster {alias}", str(error))


def setting_problems(
    alias: str, settings: Mapping[int, Mapping[str, str]], refused: Mapping[int, str], transaction_timeout_ms: int
) -> Iterator[Finding]:
    """Pure."""
    for node_id, broker_settings in settings.items():
        max_timeout = broker_settings.get(_MAX_TIMEOUT)
        if max_timeout is not None and int(max_timeout) < transaction_timeout_ms:
            what = f"has {_MAX_TIMEOUT}={max_timeout}: {timeout_problem(transaction_timeout_ms)}"
            yield Finding(Level.STOPS, f"cluster {alias}, broker {node_id}", what)
        yield from _metadata_problems(f"cluster {alias}, broker {node_id}", broker_settings)
    for node_id, reason in refused.items():
        what = f"{_MAX_TIMEOUT}, {METADATA_LIMIT} and the defaults of new topics are not known: {reason}"
        yield Finding(Level.UNKNOWN, f"cluster {alias}, broker {node_id}", what)


def _metadata_problems(subject: str, broker_settings: Mapping[str, str]) -> Iterator[Finding]:
    """Whether receipts of transactions, and the notes of the mirror, are short enough for the broker: metadata of offsets."""
    problem, limit = receipt_limit_problem(broker_settings), broker_settings.get(METADATA_LIMIT)
    if problem is not None:
        yield Finding(Level.STOPS, subject, problem)
    elif limit is not None and int(limit) < MAX_NOTE_BYTES:
        what = (
            f"has {METADATA_LIMIT}={limit}, and the registration of a mirror may need {MAX_NOTE_BYTES} bytes: where it does not "
            "fit, other mirrors do not detect replication rings through this one, and older tables of it may not be noticed"
        )
        yield Finding(Level.DOUBT, subject, what)


def source_right_problems(rights: Permissions, plans: Mapping[str, TargetPlan]) -> Iterator[Finding]:
    """Pure."""
    for source in plans:
        yield from _missing_rights("source", rights, source, ON_SOURCE_TOPICS)


def group_log_problems(rights: Permissions, groups: GroupSettings) -> Iterator[Finding]:
    """Pure. `rights` on the topic in which the source's coordinators keep what groups commit; `groups` ask to follow it."""
    level, effect = Level.STOPS, "groups.follow is required"
    if groups.follow != "required":
        level = Level.DOUBT
        effect = (
            f"until then offsets of groups are polled once per {groups.sync}, and a fail-over without the source repeats the "
            "records that groups read between two of these"
        )
    for grant in missing_on_topic(rights, GROUP_LOG, ON_SOURCE_TOPICS):
        yield Finding(level, f"source topic {GROUP_LOG}", f"{grant}; {effect}")


def target_right_problems(rights: Permissions, plans: Mapping[str, TargetPlan]) -> Iterator[Finding]:
    """Pure. `rights` on the target's topics, existing or not."""
    for plan in plans.values():
        to_create = TO_CREATE if plan.created_with is not None else {}
        to_grow = TO_ADD_PARTITIONS if plan.added_partitions else {}
        yield from _missing_rights("target", rights, plan.topic, {**ON_TARGET_TOPICS, **to_create, **to_grow})


def _missing_rights(side: str, rights: Permissions, topic: str, needed: Mapping[Operation, str]) -> Iterator[Finding]:
    return (Finding(Level.STOPS, f"{side} topic {topic}", grant) for grant in missing_on_topic(rights, topic, needed))
