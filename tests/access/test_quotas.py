"""`quotas` between clusters as strict as brokers: what is shown, created, updated and refused, and the exit codes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster
from tests.support.mirror_runs import wait_for

from shallow_mirror import cli
from shallow_mirror.access.quotas import quota_stores
from shallow_mirror.access.sync import quota_passes
from shallow_mirror.broker.admin.access import Quota, QuotaClient, QuotaEntity
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, RetriableError

ANNA = (("user", "anna"),)
APP = (("client-id", "app"),)
RATE, PERCENT = "producer_byte_rate", "request_percentage"


class Clusters(NamedTuple):
    source: StrictCluster
    target: StrictCluster


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    with StrictCluster() as source, StrictCluster() as target:
        yield Clusters(source, target)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        shown = capsys.readouterr()
        return Ended(int(caught.value.code or 0), shown.out, shown.err)

    return run


def document(clusters: Clusters, **changes: Any) -> dict[str, Any]:
    return {
        "mirror": "m",
        "source": {"alias": "east", "client": {"bootstrap.servers": clusters.source.bootstrap}},
        "target": {"alias": "west", "client": {"bootstrap.servers": clusters.target.bootstrap}},
        "topics": {"include": ["orders.*"]},
        "tables": "tables",
        **changes,
    }


def conf(folder: Path, clusters: Clusters, **changes: Any) -> str:
    path = folder / "mirror.yaml"
    path.write_text(json.dumps(document(clusters, **changes)), encoding="utf-8")
    return str(path)


def test_the_exit_code_is_1_until_the_quotas_are_created(clusters: Clusters, tmp_path: Path, console: Run) -> None:
    clusters.source.quotas = {ANNA: {RATE: 100.0, PERCENT: 20.0}, APP: {RATE: 5.0}, (("user", None),): {RATE: 9.0}}
    clusters.target.quotas = {APP: {RATE: 7.0}}
    path = conf(tmp_path, clusters)
    shown = console("quotas", path)
    assert shown.code == 1
    assert "0 quotas present, 2 to create, 1 with another value, 1 not copied" in shown.out
    assert clusters.target.asked("AlterClientQuotas") == 0
    assert console("quotas", path, "--apply").code == 0
    assert clusters.target.quotas == {APP: {RATE: 7.0}, ANNA: {RATE: 100.0, PERCENT: 20.0}}
    document = json.loads(console("quotas", path, "--apply", "--update", "--json").out)
    assert document["updated"] == [{"entity": {"client-id": "app"}, "key": RATE, "value": 5.0}]
    assert clusters.target.quotas[APP] == {RATE: 5.0}
    assert console("quotas", path).code == 0
    assert clusters.source.asked("AlterClientQuotas") == 0


def test_update_needs_apply(clusters: Clusters, tmp_path: Path, console: Run) -> None:
    refused = console("quotas", conf(tmp_path, clusters), "--update")
    assert refused.code == 2
    assert "--update requires --apply" in refused.err


def test_users_without_an_entry_end_it_before_anything_is_done(clusters: Clusters, tmp_path: Path, console: Run) -> None:
    clusters.source.quotas = {ANNA: {RATE: 100.0}}
    refused = console("quotas", conf(tmp_path, clusters, acls={"principals_only": True}), "--apply")
    assert refused.code == 2
    assert "has no entry for User:anna" in refused.err
    assert clusters.target.quotas == {}


def test_a_quota_that_the_target_refuses_is_left(clusters: Clusters, tmp_path: Path, console: Run) -> None:
    clusters.source.quotas = {ANNA: {RATE: 0.0}, APP: {RATE: 5.0}}
    applied = console("quotas", conf(tmp_path, clusters), "--apply", "--json")
    assert applied.code == 1
    assert json.loads(applied.out)["left"][0]["reason"] == "INVALID_REQUEST: by the fake"
    assert clusters.target.quotas == {APP: {RATE: 5.0}}


def test_missing_permissions_are_named(clusters: Clusters) -> None:
    client = QuotaClient(ClientConfig.from_properties({"bootstrap.servers": clusters.target.bootstrap}), "target cluster west")
    clusters.target.change_always("DescribeClientQuotas", error(31))
    with pytest.raises(ConfigError, match=r"target cluster west: reading quotas: .* grant DescribeConfigs on the cluster"):
        client.read()
    clusters.target.change_always("AlterClientQuotas", error(31))
    with pytest.raises(ConfigError, match=r"setting quotas: .* grant AlterConfigs on the cluster"):
        client.set([Quota(QuotaEntity(ANNA), RATE, 1.0)])


@pytest.mark.slow
def test_a_response_of_a_moment_is_retried_and_one_that_stays_is_retriable(clusters: Clusters) -> None:
    properties = {"bootstrap.servers": clusters.target.bootstrap, "request.timeout.ms": 1000}
    client = QuotaClient(ClientConfig.from_properties(properties), "target cluster west")
    clusters.target.change("AlterClientQuotas", error(41))
    assert client.set([Quota(QuotaEntity(ANNA), RATE, 1.0)]) == {}
    clusters.target.change_always("AlterClientQuotas", error(41))
    with pytest.raises(RetriableError, match="target cluster west"):
        client.set([Quota(QuotaEntity(ANNA), RATE, 1.0)])


def test_many_quotas_are_set_in_requests_of_bounded_size(clusters: Clusters) -> None:
    client = QuotaClient(ClientConfig.from_properties({"bootstrap.servers": clusters.target.bootstrap}), "target")
    quotas = [Quota(QuotaEntity((("user", f"u{number}"),)), key, 1.0) for key in (RATE, PERCENT) for number in range(450)]
    assert client.set(quotas) == {}
    assert [len(body.entries) for body in clusters.target.bodies("AlterClientQuotas")] == [200, 200, 50]
    assert client.read() == frozenset(quotas)


def test_a_running_mirror_logs_differences_and_then_creates_them(clusters: Clusters, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clusters.source.quotas = {ANNA: {RATE: 100.0}, APP: {RATE: 5.0}}
    clusters.target.quotas = {APP: {RATE: 7.0}}
    settings = {"sync": "1 minute", "report_only": True}
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def pass_of(**quotas: Any) -> Any:
        config = MirrorConfig.from_document(document(clusters, quotas=quotas), folder=Path("/tmp"))
        return quota_passes(config, *quota_stores(config)).run_pass(now)

    assert pass_of(**settings).lacking == 1
    assert clusters.target.quotas == {APP: {RATE: 7.0}}
    assert caplog.messages == [
        "quotas: target cluster west lacks: producer_byte_rate=100 of user anna",
        "quotas: target cluster west has another value: producer_byte_rate=5 of client-id app, at the target 7",
    ]
    assert (done := pass_of(sync="1 minute")).created == 1
    assert done.lacking == 0
    assert clusters.target.quotas == {APP: {RATE: 7.0}, ANNA: {RATE: 100.0}}
    assert pass_of(sync="1 minute", update=True).created == 1
    assert clusters.target.quotas[APP] == {RATE: 5.0}
    clusters.source.quotas = {(("user", "bob"),): {RATE: -1.0}}
    assert "refused 1 quota: producer_byte_rate=-1 of user bob" in str(pass_of(sync="1 minute").problem)


@pytest.mark.brokers
def test_quotas_of_real_brokers_are_copied(two_clusters: Any, tmp_path: Path, topic_name: str, console: Run) -> None:
    source, target = two_clusters
    readers = [
        QuotaClient(ClientConfig.from_properties({"bootstrap.servers": node.bootstrap}), "cluster") for node in (source, target)
    ]
    user, app = f"u {topic_name}"[:60], f"c-{topic_name}"[:60]
    wanted = [
        Quota(QuotaEntity.of({"user": user}), RATE, 1048576.0),
        Quota(QuotaEntity.of({"user": user, "client-id": None}), PERCENT, 12.5),
        Quota(QuotaEntity.of({"client-id": app}), "controller_mutation_rate", 3.0),
    ]
    assert readers[0].set(wanted) == {}
    path = tmp_path / "mirror.yaml"
    clients = {"source": source, "target": target}
    sides = {side: {"alias": side, "client": {"bootstrap.servers": node.bootstrap}} for side, node in clients.items()}
    path.write_text(json.dumps({"mirror": "m", **sides, "topics": {"include": ["x"]}, "tables": "t"}), encoding="utf-8")
    wait_for("the quotas", lambda: set(wanted) <= readers[0].read())
    assert console("quotas", str(path), "--apply").code == 0
    wait_for("the quotas", lambda: set(wanted) <= readers[1].read())
    assert console("quotas", str(path)).code == 0
    assert readers[1].set([Quota(QuotaEntity.of({"user": user}), RATE, 0.0)]) != {}
