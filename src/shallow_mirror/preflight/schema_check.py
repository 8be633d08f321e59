"""Driver: whether both Schema Registries know the ids that sampled keys and values begin with, as the same schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.plurals import counted, listed
from shallow_mirror.preflight.findings import Finding, Level
from shallow_mirror.preflight.schema_ids import FieldIds, TopicIds
from shallow_mirror.schemas import DEFAULT_CONTEXT, Schema, SchemaId

REGISTRY_TOPIC = "_schemas"
"""Topic of Confluent's registry and Karapace, unless they are configured otherwise."""

_MOST_IDS = 100
"""Looked up for the keys, or the values, of a topic: the most frequent ones. Payloads without ids may begin with anything."""


class SchemaLookup(Protocol):
    """A registry that knows schemas by id. Raises ConfigError, RetriableError."""

    def schema(self, schema_id: SchemaId) -> Schema | None:
        """Return the schema; None if no schema has the id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaUse:
    """Keys or values (`field`) of a topic: `with_ids` of `sampled` begin with an id of the source's registry.

    `ids`: these ids; `missing`: those that the target's registry lacks; `different`: those that are another schema there.
    """

    topic: str
    field: str
    sampled: int
    with_ids: int
    ids: tuple[int, ...]
    missing: tuple[int, ...]
    different: tuple[int, ...]

    @property
    def is_likely(self) -> bool:
        """Return whether the topic looks as if it carried ids: other payloads begin with a byte 0 and a known id by chance."""
        return 2 * self.with_ids >= self.sampled

    def __str__(self) -> str:
        state = "the target's registry has the same" if not (self.missing or self.different) else "see warnings"
        likely = "" if self.is_likely else ", so probably by chance"
        ids = listed(str(schema_id) for schema_id in self.ids)
        return f"{self.topic}: {self.with_ids:,} of {counted(self.sampled, self.field)} sampled{likely}: ids {ids}; {state}"

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "is_likely": self.is_likely}


class SchemaCheck:
    """Compares ids of samples in both registries, each once. `findings` are complete when `check` has returned."""

    def __init__(self, source: SchemaLookup, target: SchemaLookup) -> None:
        self._source, self._target = source, target
        self._known: dict[int, Schema | None] = {}
        self._states: dict[int, str] = {}
        self.findings: list[Finding] = []

    def check(self, topics: Mapping[str, TopicIds]) -> tuple[SchemaUse, ...]:
        """Return keys and values with ids. A registry that cannot be asked is a finding."""
        try:
            uses = tuple(use for topic, seen in topics.items() for use in self._uses(topic, seen))
        except (ConfigError, RetriableError) as error:
            self.findings.append(Finding(Level.UNKNOWN, "schema ids", f"could not be checked: {error}"))
            return ()
        self.findings += [finding for use in uses if use.is_likely for finding in _problems(use)]
        return uses

    def _uses(self, topic: str, seen: TopicIds) -> Iterator[SchemaUse]:
        for reason, count in seen.unopened.items():
            what = f"{counted(count, 'batch')} could not be opened to look for schema ids: {reason}"
            self.findings.append(Finding(Level.UNKNOWN, f"source topic {topic}", what))
        for name, field in (("key", seen.keys), ("value", seen.values)):
            use = self._use(topic, name, field)
            if use is not None:
                yield use

    def _use(self, topic: str, name: str, field: FieldIds) -> SchemaUse | None:
        frequent = [schema_id for schema_id, _ in field.ids.most_common(_MOST_IDS)]
        ids = sorted(schema_id for schema_id in frequent if self._schema_at_source(schema_id) is not None)
        if not ids:
            return None
        states = {schema_id: self._state(schema_id) for schema_id in ids}
        return SchemaUse(
            topic=topic,
            field=name,
            sampled=field.sampled,
            with_ids=sum(field.ids[schema_id] for schema_id in ids),
            ids=tuple(ids),
            missing=tuple(schema_id for schema_id, state in states.items() if state == "missing"),
            different=tuple(schema_id for schema_id, state in states.items() if state == "different"),
        )

    def _schema_at_source(self, schema_id: int) -> Schema | None:
        if schema_id not in self._known:
            self._known[schema_id] = self._source.schema(SchemaId(DEFAULT_CONTEXT, schema_id))
        return self._known[schema_id]

    def _state(self, schema_id: int) -> str:
        if schema_id not in self._states:
            expected, actual = self._known[schema_id], self._target.schema(SchemaId(DEFAULT_CONTEXT, schema_id))
            assert expected is not None
            self._states[schema_id] = "missing" if actual is None else "same" if expected.is_same(actual) else "different"
        return self._states[schema_id]


def _problems(use: SchemaUse) -> Iterator[Finding]:
    subject = f"{use.field}s of {use.topic}"
    if use.missing:
        ids = listed(str(schema_id) for schema_id in use.missing)
        what = f"the target's registry lacks schema ids that they carry ({ids}): run `shallow-mirror schemas CONF --apply`"
        yield Finding(Level.DOUBT, subject, what)
    if use.different:
        ids = listed(str(schema_id) for schema_id in use.different)
        what = f"the target's registry has other schemas with ids that they carry ({ids}): consumers would misread them"
        yield Finding(Level.DOUBT, subject, what)


def registry_topic_findings(topics: Mapping[str, object]) -> list[Finding]:
    """Return a warning if the topic of a registry is mirrored."""
    if REGISTRY_TOPIC not in topics:
        return []
    what = (
        "is the storage of a Schema Registry: exclude it (topics.exclude), unless a registry at the target is to read it, which "
        "does not write"
    )
    return [Finding(Level.DOUBT, f"source topic {REGISTRY_TOPIC}", what)]
