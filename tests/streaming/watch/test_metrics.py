"""What Prometheus reads, and that every name in the dashboard and in the documented alerts is one of them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.observed import OBSERVED

from shallow_mirror.checkpoints.logs.runs import ProblemKind
from shallow_mirror.groups.report import GroupLag
from shallow_mirror.sinks import Side
from shallow_mirror.streaming.planning import LeftOutPartition
from shallow_mirror.streaming.watch import OpenTransaction, PartitionStatus
from shallow_mirror.streaming.watch.metrics import MAX_LEFT_OUT_SERIES, OTHER_TOPICS, PREFIX, ClusterSnapshot, Metrics
from shallow_mirror.streaming.watch.metrics_port import RunRegistries
from shallow_mirror.types import SourcePartition


def metrics_of(max_topics: int = 2) -> Metrics:
    return Metrics("m", max_topics, version="1", source="east", target="west")


def lag(topic: str, partition: int, offsets: int | None, ms: int | None) -> PartitionStatus:
    end = None if offsets is None else 100 + offsets
    source = SourcePartition(topic, "id", partition)
    return PartitionStatus(source=source, position=100, end=end, lag_offsets=offsets, lag_ms=ms)


def snapshot(*partitions: PartitionStatus, **changes: Any) -> ClusterSnapshot:
    return replace(ClusterSnapshot(at_ms=50_000, partitions=partitions, is_source_up=True, is_target_up=False), **changes)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(PREFIX + name, {"mirror": "m", **labels})


def test_a_micro_batch_is_added_to_every_counter() -> None:
    metrics = metrics_of()
    dropped = {"aborted": 3, "commit": 2, "quarantined": 4}
    steps = {"RunSlots": 300.0, "SlowestSlot": 200.0, "Decide": 20.0, "Total": 350.0}
    observed = replace(OBSERVED, dropped_batch_counts=dropped, duration_ms=steps)
    metrics.on_micro_batch(observed, [0.4, 7.0])
    metrics.on_micro_batch(replace(observed, dropped_batch_counts={}), [])
    metrics.on_refused_batch()
    metrics.on_restart()
    metrics.on_problem(ProblemKind.WAIT)
    metrics.on_decision(5_500)
    assert [value(metrics, f"{name}_total") for name in ("micro_batches", "records", "copied_bytes", "fetched_bytes")] == [
        2,
        100,
        1800,
        2000,
    ]
    verdicts = {verdict: value(metrics, "batches_total", verdict=verdict) for verdict in ("raw", "rebuilt", "refused", "dropped")}
    assert verdicts == {"raw": 16, "rebuilt": 4, "refused": 5, "dropped": 5}
    assert value(metrics, "dropped_batches_total", kind="aborted") == 3
    assert value(metrics, "step_seconds_total", step="SlowestSlot") == pytest.approx(0.4)
    assert value(metrics, "step_seconds_total", step="Total") is None
    assert value(metrics, "end_to_end_seconds_bucket", le="0.5") == 1
    assert value(metrics, "end_to_end_seconds_count") == 2
    assert value(metrics, "micro_batch_seconds_sum") == pytest.approx(0.7)
    assert value(metrics, "last_decision_timestamp_seconds") == 5.5
    assert value(metrics, "restarts_total") == 1
    assert value(metrics, "problems_total", kind="wait") == 1


def test_the_lag_of_groups_has_no_value_until_their_commits_are_followed() -> None:
    metrics = metrics_of()
    assert math.isnan(value(metrics, "group_commit_age_seconds") or 0.0)
    metrics.on_group_lag(GroupLag(0.4, 7))
    metrics.on_group_lag(GroupLag(0.0, 2))
    assert (value(metrics, "group_commit_age_seconds"), value(metrics, "group_commits_followed_total")) == (0.0, 9)
    metrics.on_group_lag(GroupLag(None))
    assert math.isnan(value(metrics, "group_commit_age_seconds") or 0.0)


def test_polling_of_groups_is_0_only_where_commits_could_be_followed() -> None:
    metrics = metrics_of()
    assert math.isnan(value(metrics, "groups_followed") or 0.0)
    metrics.on_group_lag(GroupLag(0.4, 7, is_followed=True))
    assert value(metrics, "groups_followed") == 1
    metrics.on_group_lag(GroupLag(None, is_followed=False, repeated_count=30))
    assert (value(metrics, "groups_followed"), value(metrics, "failover_repeated_records")) == (0, 30)
    metrics.on_group_lag(GroupLag(None))
    assert math.isnan(value(metrics, "groups_followed") or 0.0)
    assert math.isnan(value(metrics, "failover_repeated_records") or 0.0)


def test_lag_is_that_of_a_topic_and_topics_beyond_the_bound_are_one() -> None:
    metrics = metrics_of(max_topics=2)
    metrics.clusters.update(
        snapshot(lag("b", 0, 5, 70), lag("b", 1, 6, 90), lag("c", 0, 0, 0), lag("d", 0, 1, 10), lag("e", 0, 2, 20))
    )

    def offsets() -> dict[str, float | None]:
        return {topic: value(metrics, "lag_offsets", topic=topic) for topic in ("a", "b", "c", "d", OTHER_TOPICS)}

    assert offsets() == {"a": None, "b": 11, "c": 0, "d": None, OTHER_TOPICS: 3}
    assert [value(metrics, "lag_ms", topic=topic) for topic in ("b", "c", OTHER_TOPICS)] == [90, 0, 20]
    metrics.clusters.update(snapshot(lag("a", 0, 4, 1), lag("b", 0, 5, 70), lag("d", 0, 1, 10)))
    assert offsets() == {"a": 4, "b": 5, "c": None, "d": None, OTHER_TOPICS: 1}  # who has a series keeps it
    assert (value(metrics, "cluster_up", cluster="source"), value(metrics, "cluster_up", cluster="target")) == (1, 0)


def test_topics_say_whether_their_offsets_are_preserved_and_how_many_fillers_they_were_sent() -> None:
    metrics = metrics_of(max_topics=2)
    metrics.clusters.add_fillers({"b": 3, "d": 1})
    assert value(metrics, "fillers_total", topic="b") is None, "no topic has a series yet"
    metrics.clusters.update(snapshot(lag("b", 0, 5, 70), lag("c", 0, 0, 0), lag("d", 0, 1, 10), preserved_topics=frozenset("bd")))
    metrics.clusters.add_fillers({"b": 4, "e": 2})
    assert [value(metrics, "topic_offsets_preserved", topic=topic) for topic in ("b", "c", "d", OTHER_TOPICS)] == [
        1,
        0,
        None,
        None,
    ]
    assert [value(metrics, "fillers_total", topic=topic) for topic in ("b", "c", OTHER_TOPICS)] == [7, None, 3]


def test_what_the_source_does_not_say_is_no_zero() -> None:
    metrics = metrics_of()
    assert value(metrics, "open_source_transactions") is None
    waiting = OpenTransaction(
        source=SourcePartition("a", "id", 0), first_offset=1, producer_id=2, producer_epoch=0, wrote_at_ms=20_000
    )
    metrics.clusters.update(
        snapshot(lag("a", 0, None, None), lag("a", 1, 3, 1), open_transactions=(waiting, replace(waiting, wrote_at_ms=None)))
    )
    assert (value(metrics, "lag_offsets", topic="a"), value(metrics, "partitions"), value(metrics, "partitions_without_lag")) == (
        3,
        2,
        1,
    )
    assert (value(metrics, "open_source_transactions"), value(metrics, "open_source_transaction_silent_seconds")) == (2, 30)
    metrics.clusters.update(snapshot(lag("a", 0, None, None)))
    assert value(metrics, "lag_offsets", topic="a") is None
    metrics.clusters.clear()
    assert (value(metrics, "partitions"), value(metrics, "cluster_up", cluster="source")) == (None, None)


def names() -> set[str]:
    names = set()
    registries = RunRegistries()
    registries.add("m", metrics_of().registry)
    for family in registries.collect():
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + ending for ending in endings}
    return names


def expressions_of_dashboard(document: Any) -> list[str]:
    if isinstance(document, dict):
        own = [text for key in ("expr", "query", "definition") if isinstance(text := document.get(key), str)]
        return own + [text for part in document.values() for text in expressions_of_dashboard(part)]
    return [text for part in document for text in expressions_of_dashboard(part)] if isinstance(document, list) else []


def metrics_in(dashboard: Any) -> set[str]:
    return set(re.findall(r"\b(?:shallow_mirror|process)_[a-z_]+", " ".join(expressions_of_dashboard(dashboard))))


@pytest.mark.parametrize("name", ["dashboard", "archive", "migration"])
def test_a_dashboard_names_metrics_that_exist_and_variables_that_it_has(repository: Path, name: str) -> None:
    text = (repository / "conf" / f"grafana-{name}.json").read_text(encoding="utf-8")
    dashboard = json.loads(text)
    asked = metrics_in(dashboard)
    assert len(asked) > 10
    assert asked <= names()
    variables = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", text)) <= variables
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "no panel lies on another"


def test_dashboards_have_names_of_their_own(repository: Path) -> None:
    dashboards = [json.loads(path.read_text(encoding="utf-8")) for path in (repository / "conf").glob("grafana-*.json")]
    assert len(dashboards) == 3
    assert len({dashboard["uid"] for dashboard in dashboards}) == len({dashboard["title"] for dashboard in dashboards}) == 3


def test_the_dashboard_of_archives_shows_what_archives_and_restores_have(repository: Path) -> None:
    """They have no lag and no state of clusters: docs/reference/metrics.md."""
    text = (repository / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    rows = text.partition("| metric | meaning |")[2].partition("| `lag_offsets`")[0]
    theirs = {PREFIX + name for name in re.findall(r"^\| `([a-z_]+)`", rows, re.MULTILINE)} | {f"{PREFIX}left_out_partitions"}
    theirs |= {
        PREFIX + name for cell in re.findall(r"^\| (`[^|]+) \|", rows, re.MULTILINE) for name in re.findall(r"`([a-z_]+)`", cell)
    }
    dashboard = json.loads((repository / "conf" / "grafana-archive.json").read_text(encoding="utf-8"))
    asked = {name.removesuffix("_bucket") for name in metrics_in(dashboard) if name.startswith(PREFIX)}
    assert asked == theirs


def test_the_dashboard_of_mirrors_shows_each_of_our_metrics(repository: Path) -> None:
    dashboard = json.loads((repository / "conf" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = metrics_in(dashboard)
    assert {
        name.removesuffix("_sum").removesuffix("_count").removesuffix("_bucket") for name in names() if name.startswith(PREFIX)
    } == {name.removesuffix("_sum").removesuffix("_count").removesuffix("_bucket") for name in asked if name.startswith(PREFIX)}


def test_the_documented_alerts_and_metrics_exist(repository: Path) -> None:
    text = (repository / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    document = yaml.safe_load((repository / "conf" / "prometheus-rules.yaml").read_text(encoding="utf-8"))
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert re.findall(r"^\| `([A-Z][A-Za-z]+)` \|", text, re.MULTILINE) == [rule["alert"] for rule in rules]
    asked = set(re.findall(r"\bshallow_mirror_[a-z_]+", " ".join(rule["expr"] for rule in rules)))
    assert asked
    assert asked <= names()
    assert all(rule["annotations"]["summary"] for rule in rules)
    cells = re.findall(r"^\| (`[^|]+) \|", text.partition("## Metrics")[2], re.MULTILINE)
    reported = {PREFIX + name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    ours = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in metrics_of().registry.collect()
        if family.name.startswith(PREFIX)
    }
    assert reported == ours


def test_partitions_that_are_left_out_have_a_series_each_up_to_a_bound() -> None:
    metrics = metrics_of()
    many = tuple(
        LeftOutPartition(source=SourcePartition("t", "id", number), side=Side.SOURCE, error_name="X", reason="y", since_ms=1)
        for number in range(MAX_LEFT_OUT_SERIES + 7)
    )
    metrics.clusters.left_out = many
    assert value(metrics, "left_out_partitions", topic="t", partition="0", side="source") == 1
    assert value(metrics, "left_out_partitions", topic=OTHER_TOPICS, partition="", side="source") == 7
    metrics.clusters.left_out = ()
    assert value(metrics, "left_out_partitions", topic="t", partition="0", side="source") is None
