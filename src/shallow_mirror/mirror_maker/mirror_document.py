"""Pure: one flow of MirrorMaker 2 as the document of a mirror file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shallow_mirror import routing
from shallow_mirror.errors import ConfigError
from shallow_mirror.mirror_maker.client_settings import client_settings
from shallow_mirror.mirror_maker.findings import Finding, Variable
from shallow_mirror.mirror_maker.flows import Flow
from shallow_mirror.mirror_maker.java_patterns import as_python, split_list

_TOPICS_EXCLUDED = r".*[\-\.]internal, .*\.replica, __.*"
_GROUPS_EXCLUDED = "console-consumer-.*, connect-.*, __.*"
"""Defaults of MirrorMaker 2."""

_OWN_TOPICS = (routing.HEARTBEATS, r"mm2-.*\.internal", r".*\.checkpoints\.internal")
"""Topics of MirrorMaker 2 itself, which it never mirrors as data."""

_DEFAULT_POLICY, _IDENTITY_POLICY = "DefaultReplicationPolicy", "IdentityReplicationPolicy"
_DEFAULT_CLASSES = {
    "topic.filter.class": "DefaultTopicFilter",
    "group.filter.class": "DefaultGroupFilter",
    "config.property.filter.class": "DefaultConfigPropertyFilter",
    "forwarding.admin.class": "ForwardingAdmin",
}
_CHANGE_RECORDS = ("transforms", "predicates")

_WITHOUT_EFFECT = re.compile(
    r"((offset-syncs|checkpoints|heartbeats)\..*|emit\..*|offset\.lag\.max|(offset|config|status)\.storage\..*|(key|value|header)\.converter.*"
    r"|internal\..*|dedicated\.mode\..*|listeners|rest\..*|admin\.listeners|plugin\..*|exactly\.once\..*|transaction\.boundary.*|name"
    r"|connector\.class|(source|target)\.cluster\.alias|clusters|enabled|config\.providers.*|consumer\.poll\.timeout\.ms|admin\.timeout\.ms"
    r"|refresh\.groups\..*|task\.shutdown\..*|use\.incremental\.alter\.configs|add\.source\.alias\.to\.metrics|replication\.policy\..*"
    r"|sync\.topic\.configs\.interval\.seconds|offset\.flush\..*|worker\..*|group\.id|scheduled\.rebalance\..*|errors\..*)"
)
"""Of Kafka Connect, or of what exact offsets and Delta tables replace."""


@dataclass(frozen=True, slots=True)
class ImportedMirror:
    flow: Flow
    document: dict[str, Any]
    findings: tuple[Finding, ...]
    variables: tuple[Variable, ...]

    @property
    def name(self) -> str:
        return self.flow.name


def imported_mirror(flow: Flow, where: str, *, target_name: str | None = None) -> ImportedMirror:
    """Return the mirror file of a flow. `target_name`: instead of what replication.policy.class says.

    Raises ConfigError where the names of target topics, or the topics, cannot be known.
    """
    source, target = (client_settings(flow, alias, where) for alias in (flow.source, flow.target))
    findings: list[Finding] = []
    topics = _topics(flow, where, target_name, findings)
    document: dict[str, Any] = {
        "mirror": flow.name,
        "source": {"alias": flow.source, "client": source.properties},
        "target": {"alias": flow.target, "client": target.properties},
        "topics": topics,
    }
    read = _read(flow, findings)
    document |= {"read": read} if read else {}
    groups = _groups(flow, where, findings)
    document |= {"groups": groups} if groups else {}
    acls = _acls(flow, where, findings)
    document |= {"acls": acls} if acls else {}
    if _is_on(flow, "emit.heartbeats.enabled", default=False):
        seconds = flow.connector("emit.heartbeats.interval.seconds") or "1"
        document["heartbeats"] = {"interval": f"{_number(seconds, f'{where}: emit.heartbeats.interval.seconds')} seconds"}
    document["tables"] = f"{flow.name}-tables"
    if tasks := flow.connector("tasks.max"):
        findings.append(Finding("tasks.max", f"{tasks}: the counterpart is write.slots, 8 concurrent transactions by default"))
    for name in _CHANGE_RECORDS:
        if flow.connector(name):
            findings.append(Finding(name, "changes records; a mirror does not open batches: change records elsewhere"))
    variables = tuple(dict.fromkeys((*source.variables, *target.variables)))
    return ImportedMirror(
        flow,
        document,
        (*findings, *source.findings, *target.findings),
        variables,
    )


def unused(flows: Sequence[Flow]) -> list[str]:
    """Return the properties of the file that nothing of the above read, and that are not known to be without effect."""
    used = set().union(*(flow.used for flow in flows))
    aliases = {alias for flow in flows for alias in (flow.source, flow.target)}
    prefixes = (*(f"{alias}." for alias in aliases), "source.", "target.")
    enabled = tuple(f"{flow.source}->{flow.target}." for flow in flows)
    return [
        name
        for name in flows[0].properties
        if name not in used
        and not _WITHOUT_EFFECT.fullmatch(name.removeprefix(next((prefix for prefix in enabled if name.startswith(prefix)), "")))
        and not name.startswith(prefixes)
        and ("->" not in name or name.startswith(enabled))
    ]


def _topics(flow: Flow, where: str, target_name: str | None, findings: list[Finding]) -> dict[str, Any]:
    for name, default in _DEFAULT_CLASSES.items():
        chosen = flow.connector(name)
        if chosen is not None and chosen.rsplit(".", 1)[-1] != default:
            findings.append(Finding(name, f"{chosen} is a class of your own: write what it selects as patterns"))
    separator = flow.connector("replication.policy.separator") or "."
    template = target_template(flow, where, target_name)
    exclude = [*_patterns(flow, where, findings, _TOPICS_EXCLUDED, "topics.exclude", "topics.blacklist"), *_OWN_TOPICS]
    if "{source}" in template:
        exclude.append(rf"(.*{re.escape(separator)})?{re.escape(flow.target + separator)}.*")
    topics: dict[str, Any] = {
        "include": _patterns(flow, where, findings, ".*", "topics", "topics.whitelist"),
        "exclude": [pattern for pattern in exclude if not pattern.startswith("__")],
        "target_name": template,
    }
    factor = flow.connector("replication.factor")
    if factor is None:
        findings.append(Finding("(replication.factor = 2)", "new topics get the target's default: topics.replication_factor"))
    elif factor != "-1":
        topics["replication_factor"] = _number(factor, f"{where}: replication.factor")
    topics["configs"] = "sync" if _is_on(flow, "sync.topic.configs.enabled", default=True) else "create"
    if excluded := flow.connector("config.properties.exclude", "config.properties.blacklist"):
        findings.append(Finding("config.properties.exclude", f"{excluded}: a mirror has its own list of settings to copy"))
    if not _is_on(flow, "refresh.topics.enabled", default=True):
        findings.append(Finding("refresh.topics.enabled", "false: a mirror finds new topics: write names in topics.include"))
    if seconds := flow.connector("refresh.topics.interval.seconds"):
        topics["discovery"] = f"{_number(seconds, f'{where}: refresh.topics.interval.seconds')} seconds"
    return topics


def target_template(flow: Flow, where: str, target_name: str | None) -> str:
    """Return the template of target topics. `target_name`: instead of what replication.policy.class says.

    Raises ConfigError for a class of its own without `target_name`, and for a template that names no topics.
    """
    policy = flow.connector("replication.policy.class")
    separator = flow.connector("replication.policy.separator") or "."
    if target_name:
        if (problem := routing.template_problem(target_name)) is not None:
            raise ConfigError(f"--target-name: {problem}")
        return target_name
    kind = (policy or _DEFAULT_POLICY).rsplit(".", 1)[-1]
    if kind == _DEFAULT_POLICY:
        return f"{{source}}{separator}{{topic}}"
    if kind == _IDENTITY_POLICY:
        return "{topic}"
    raise ConfigError(
        f"{where}: replication.policy.class: {policy} is a class of your own, so the names of the target topics of "
        f"{flow.name} are not known: give them with --target-name, for example --target-name '{{source}}.{{topic}}'"
    )


def _patterns(flow: Flow, where: str, findings: list[Finding], default: str, *names: str) -> list[str]:
    chosen = flow.connector(*names)
    patterns = []
    for pattern in split_list(default if chosen is None else chosen):
        converted, problem = as_python(pattern)
        if problem is not None:
            raise ConfigError(f"{where}: {names[0]}: {pattern}: {problem}: write it in another way in a copy of the file")
        patterns.append(converted)
    if not patterns and names[0] in ("topics", "groups"):
        raise ConfigError(f"{where}: {names[0]} is empty for {flow.name}: there is nothing to copy")
    return patterns


def _read(flow: Flow, findings: list[Finding]) -> dict[str, Any]:
    read = {}
    start = flow.client(flow.source, "auto.offset.reset")
    if start == "latest":
        read["start"] = "latest"
    elif start not in (None, "earliest"):
        findings.append(Finding("auto.offset.reset", f"{start}: read.start is earliest, latest or a time"))
    isolation = flow.client(flow.source, "isolation.level")
    if isolation is None or isolation.lower() == "read_uncommitted":
        findings.append(
            Finding(
                "isolation.level" if isolation else "(isolation.level = read_uncommitted)",
                "records of aborted transactions were copied; a mirror leaves them out (read.isolation_level)",
            )
        )
    return read


def _groups(flow: Flow, where: str, findings: list[Finding]) -> dict[str, Any]:
    if not _is_on(flow, "sync.group.offsets.enabled", default=False):
        return {}
    seconds = flow.connector("sync.group.offsets.interval.seconds") or "60"
    return {
        "sync": f"{_number(seconds, f'{where}: sync.group.offsets.interval.seconds')} seconds",
        "include": _patterns(flow, where, findings, ".*", "groups", "groups.whitelist"),
        "exclude": _patterns(flow, where, findings, _GROUPS_EXCLUDED, "groups.exclude", "groups.blacklist"),
    }


def _acls(flow: Flow, where: str, findings: list[Finding]) -> dict[str, Any]:
    chosen = flow.connector("sync.topic.acls.enabled")
    seconds = flow.connector("sync.topic.acls.interval.seconds") or "600"
    if chosen is None:
        findings.append(
            Finding(
                "(sync.topic.acls.enabled = true)",
                "with an authorizer on both clusters, write an interval in acls.sync, such as 10 minutes",
            )
        )
    if not _is_on(flow, "sync.topic.acls.enabled", default=False):
        return {}
    return {"sync": f"{_number(seconds, f'{where}: sync.topic.acls.interval.seconds')} seconds"}


def _is_on(flow: Flow, name: str, *, default: bool) -> bool:
    chosen = flow.connector(name)
    return default if chosen is None else chosen.lower() == "true"


def _number(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{where}: {text!r} is not a whole number: correct it") from None
