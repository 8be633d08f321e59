"""Kerberos on real brokers and KDCs: what lets a client in, and the line when it stays outside."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.kerberos.conftest import TwoRealms
from tests.kerberos.kerberized_broker import CLIENT, SESSION_MS, new_client
from tests.kerberos.mirrors import mirror_file
from tests.kerberos.realm import Realm, client_config
from tests.support.deadlines import deadline
from tests.support.mirror_runs import PATIENCE_S, command, log_text, read_values, write

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import reach
from shallow_mirror.errors import AuthenticationError, RetriableError

pytestmark = pytest.mark.brokers

OF_KEYTAB: dict[str, Any] = {"sasl.kerberos.principal": None}
"""The principal is the one of the keytab."""


def cluster_id(properties: dict[str, Any]) -> str:
    with closing(Cluster(ClientConfig.from_properties(properties))) as cluster:
        return cluster.cluster_id(deadline())


def refusal(properties: dict[str, Any]) -> str:
    with closing(Cluster(ClientConfig.from_properties(properties))) as cluster:
        with pytest.raises(AuthenticationError) as caught:
            reach(cluster, "source cluster east", deadline())
    (problem,) = caught.value.problems
    assert "\n" not in problem
    start = f"source cluster east: broker {properties['bootstrap.servers']}"
    assert problem.startswith(start)
    return problem.removeprefix(start)


@pytest.mark.parametrize("listener", ["GSSAPI", "SHORT", "TLS"])
def test_a_client_with_a_keytab_is_let_in(realms: TwoRealms, listener: str) -> None:
    for broker in (realms.source, realms.target):
        assert cluster_id(broker.properties(listener)) == broker.node.cluster_id


def test_the_principal_is_the_one_of_the_keytab_and_in_its_realm(realms: TwoRealms) -> None:
    for broker in (realms.source, realms.target):
        for principal in (None, CLIENT):
            assert cluster_id(broker.properties(**{"sasl.kerberos.principal": principal})) == broker.node.cluster_id


def test_a_client_with_a_ticket_in_the_cache_of_its_environment_is_let_in(realms: TwoRealms, tmp_path: Path) -> None:
    realms.source.realm.kinit(CLIENT, realms.source.client_keytab, tmp_path / "ccache")
    for principal in (None, CLIENT, f"{CLIENT}@SOURCE.TEST"):
        properties = realms.source.properties(**{"sasl.kerberos.keytab": None, "sasl.kerberos.principal": principal})
        assert cluster_id(properties) == realms.source.node.cluster_id


def test_a_keytab_leaves_the_ticket_cache_of_the_environment_alone(realms: TwoRealms, tmp_path: Path) -> None:
    cluster_id(realms.source.properties(**{"sasl.kerberos.keytab": str(new_client(realms.source.realm, "secluded"))} | OF_KEYTAB))
    assert not (tmp_path / "ccache").exists()


def test_a_host_is_taken_as_it_is_given_and_under_its_other_names_where_the_kdc_knows_no_such_service(
    realms: TwoRealms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    properties = realms.source.properties("ALIAS", **{"sasl.kerberos.service.name": "alias"})
    assert cluster_id(properties) == realms.source.node.cluster_id
    keytab = new_client(realms.source.realm, "without-dns")
    config = tmp_path / "without-dns.conf"
    config.write_text(client_config([realms.source.realm], "rdns = false", "dns_canonicalize_hostname = false"), encoding="utf-8")
    monkeypatch.setenv("KRB5_CONFIG", str(config))
    usual = realms.source.properties(**OF_KEYTAB | {"sasl.kerberos.keytab": str(keytab)})
    assert cluster_id(usual) == realms.source.node.cluster_id
    assert "the KDC knows no service alias/127.0.0.1" in refusal(
        properties | {"sasl.kerberos.principal": "without-dns", "sasl.kerberos.keytab": str(keytab)}
    )


def test_a_ticket_is_renewed_before_it_ends_and_a_connection_lives_on(realms: TwoRealms) -> None:
    realm = realms.source.realm
    keytab = new_client(realm, "brief", "-maxlife", "4s")
    properties = realms.source.properties("SHORT", **OF_KEYTAB | {"sasl.kerberos.keytab": str(keytab)})
    with closing(Cluster(ClientConfig.from_properties(properties))) as cluster:
        connection = cluster.connection(realms.source.node.node_id, "test", deadline())
        began = time.monotonic()
        while time.monotonic() - began < 9:
            cluster.metadata([], deadline())
            time.sleep(0.1)
        assert cluster.connection(realms.source.node.node_id, "test", deadline()) is connection
    assert realm.tickets_given("brief") >= 3


def error_of(action: Callable[[], object]) -> AuthenticationError | None:
    try:
        action()
    except AuthenticationError as error:
        return error
    return None


def test_a_key_that_was_changed_ends_a_connection_once_its_ticket_has_ended(realms: TwoRealms) -> None:
    realm = realms.source.realm
    keytab = new_client(realm, "changed", "-maxlife", "3s")
    properties = realms.source.properties("SHORT", **OF_KEYTAB | {"sasl.kerberos.keytab": str(keytab)})
    with closing(Cluster(ClientConfig.from_properties(properties))) as cluster:
        cluster.cluster_id(deadline())
        realm.change_key("changed")
        refused = realm.refusals("changed")
        time.sleep(SESSION_MS / 1000)
        error = None
        while error is None:
            time.sleep(0.2)
            error = error_of(lambda: cluster.cluster_id(deadline()))
        assert "Preauthentication failed: the keytab holds an old key: export a new keytab" in str(error)
        assert realm.refusals("changed") - refused <= 3
        assert str(keytab) in str(error)
        realm.keytab("changed")
        assert cluster.cluster_id(deadline()) == realms.source.node.cluster_id


def broken_keytab(realms: TwoRealms, folder: Path, kind: str) -> str:
    realm, file = realms.source.realm, folder / "broken.keytab"
    if kind == "directory":
        file.mkdir()
    elif kind == "text":
        file.write_text("no keytab at all")
    elif kind == "cut":
        file.write_bytes(realms.source.client_keytab.read_bytes()[:30])
    elif kind == "several":
        realm.admin(f"ktadd -norandkey -k {file} {CLIENT} kafka/127.0.0.1")
    elif kind == "empty":
        file.write_bytes(b"\x05\x02")
    return str(file)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "cannot read {file}: No such file or directory: put the keytab on every machine that connects"),
        ("directory", "cannot read {file}: Is a directory"),
        ("text", "{file} is no keytab, it does not begin as a keytab: export it again"),
        ("cut", "{file} is no keytab, it is damaged"),
        ("empty", "{file} holds keys of no principal: set sasl.kerberos.principal"),
        ("several", "{file} holds keys of mirror@SOURCE.TEST, kafka/127.0.0.1@SOURCE.TEST: set sasl.kerberos.principal to one"),
    ],
)
def test_what_is_wrong_with_a_keytab_is_said(realms: TwoRealms, tmp_path: Path, kind: str, message: str) -> None:
    file = broken_keytab(realms, tmp_path, kind)
    problem = refusal(realms.source.properties(**OF_KEYTAB | {"sasl.kerberos.keytab": file}))
    assert message.format(file=file) in problem


@pytest.mark.parametrize("principal", ["another", "another@SOURCE.TEST", "mirror@NOWHERE.TEST"])
def test_a_principal_that_is_not_in_the_keytab_is_said_with_those_that_are(realms: TwoRealms, principal: str) -> None:
    problem = refusal(realms.source.properties(**{"sasl.kerberos.principal": principal}))
    assert f"holds no key of {principal}, but of mirror@SOURCE.TEST: correct sasl.kerberos.principal and its realm" in problem


def prepare_gone(realm: Realm) -> Path:
    keytab = new_client(realm, "gone")
    realm.admin("delprinc -force gone")
    return keytab


def prepare_stale(realm: Realm) -> Path:
    keytab = new_client(realm, "stale")
    realm.change_key("stale")
    return keytab


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (prepare_gone, "Client 'gone@SOURCE.TEST' not found in Kerberos database: correct sasl.kerberos.principal and its realm"),
        (prepare_stale, "Preauthentication failed: the keytab holds an old key: export a new keytab"),
        (lambda realm: new_client(realm, "ended", "-expire", "yesterday"), "entry in database has expired: renew the principal"),
        (
            lambda realm: new_client(realm, "aged", "-pwexpire", "yesterday"),
            "Password has expired: its key has expired: change it",
        ),
        (lambda realm: new_client(realm, "locked", "-allow_tix"), "credentials have been revoked: unlock the principal"),
    ],
)
def test_a_principal_that_gets_no_ticket_is_said_with_the_reason_of_the_kdc(
    realms: TwoRealms, prepare: Any, message: str
) -> None:
    realm = realms.source.realm
    keytab = prepare(realm)
    problem = refusal(realms.source.properties(**OF_KEYTAB | {"sasl.kerberos.keytab": str(keytab)}))
    assert f", GSSAPI: no ticket of the principal of {keytab}: " in problem
    assert message in problem
    # A wrong key is tried once, so that no lockout policy of the KDC is set off.
    assert realm.refusals(keytab.stem) <= 1


def test_a_ticket_cache_without_a_valid_ticket_is_said(realms: TwoRealms, tmp_path: Path) -> None:
    properties = realms.source.properties(**{"sasl.kerberos.keytab": None})
    nameless = {name: value for name, value in properties.items() if name not in OF_KEYTAB}
    assert "no ticket of the principal of the ticket cache: No Kerberos credentials available" in refusal(nameless)
    assert "run kinit, or set sasl.kerberos.keytab; the ticket cache is KRB5CCNAME" in refusal(properties)
    realms.source.realm.kinit(CLIENT, realms.source.client_keytab, tmp_path / "ccache", "-l", "1s")
    assert "Can't find client principal another@SOURCE.TEST" in refusal(properties | {"sasl.kerberos.principal": "another"})
    time.sleep(2)
    expected = "the ticket of mirror@SOURCE.TEST has expired: run kinit, or set sasl.kerberos.keytab"
    assert expected in refusal(properties)
    (tmp_path / "ccache").write_text("no cache")
    assert "Unsupported credentials cache format" in refusal(nameless)


def test_a_service_that_the_kdc_does_not_know_is_said_with_both_its_parts(realms: TwoRealms) -> None:
    usual = realms.source.properties()
    problem = refusal(usual | {"sasl.kerberos.service.name": "kafkaesque"})
    assert "the KDC knows no service kafkaesque/127.0.0.1 (Server kafkaesque/127.0.0.1@SOURCE.TEST not found" in problem
    assert "correct sasl.kerberos.service.name" in problem
    elsewhere = refusal(usual | {"bootstrap.servers": usual["bootstrap.servers"].replace("127.0.0.1", "localhost")})
    assert "the KDC knows no service kafka/localhost" in elsewhere
    assert "its host is the one in advertised.listeners or bootstrap.servers" in elsewhere


def test_a_broker_with_an_old_keytab_is_said(realms: TwoRealms) -> None:
    problem = refusal(realms.source.properties("STALE", **{"sasl.kerberos.service.name": "stale"}))
    assert "refused mirror@SOURCE.TEST (GSSAPI): Authentication failed" in problem
    assert "its keytab has the current key of that principal" in problem


def test_a_ticket_of_another_service_is_refused_by_the_broker(realms: TwoRealms) -> None:
    problem = refusal(realms.source.properties("ALIAS"))
    assert "refused mirror@SOURCE.TEST (GSSAPI): Authentication failed" in problem
    assert "sasl.kerberos.service.name" in problem


def test_clocks_that_differ_are_said(realms: TwoRealms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    properties = realms.source.properties(**OF_KEYTAB)
    config = tmp_path / "skewed.conf"
    monkeypatch.setenv("KRB5_CONFIG", str(config))
    # The client follows the clock of its KDC, and the broker does not.
    for realm, message in (
        (realms.late, "has expired: synchronise the clocks of this machine, the KDC and the brokers"),
        (realms.early, "all clocks agree (NTP)"),
    ):
        config.write_text(client_config([realm]), encoding="utf-8")
        assert message in refusal(properties | {"sasl.kerberos.keytab": str(realm.keytab(CLIENT))})
    config.write_text(client_config([realms.early], "kdc_timesync = 0"), encoding="utf-8")
    problem = refusal(properties | {"sasl.kerberos.keytab": str(realms.early.keytab(CLIENT, "strict.keytab"))})
    assert "Clock skew too great" in problem
    assert "synchronise the clocks of this machine, the KDC and the brokers" in problem


def test_a_realm_without_a_kdc_in_krb5_conf_is_said(realms: TwoRealms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "other.conf"
    config.write_text(client_config([realms.target.realm]), encoding="utf-8")
    monkeypatch.setenv("KRB5_CONFIG", str(config))
    keytab = new_client(realms.source.realm, "homeless")
    problem = refusal(realms.source.properties(**OF_KEYTAB | {"sasl.kerberos.keytab": str(keytab)}))
    assert 'Cannot find KDC for realm "SOURCE.TEST": name the KDCs of the realm in krb5.conf' in problem
    gc.collect()  # credentials cannot be freed while the file is no configuration
    config.write_text("[libdefaults\n}", encoding="utf-8")
    assert "Improper format of Kerberos configuration file: check krb5.conf" in refusal(
        realms.source.properties(**OF_KEYTAB | {"sasl.kerberos.keytab": str(keytab)})
    )


def unreached(properties: dict[str, Any], within_ms: float) -> str:
    with closing(Cluster(ClientConfig.from_properties(properties))) as cluster:
        with pytest.raises(RetriableError) as caught:
            reach(cluster, "source cluster east", deadline(within_ms))
    assert caught.value.error_name == "KDC_UNREACHABLE"
    return str(caught.value)


def test_a_kdc_that_does_not_answer_is_waited_for_until_the_deadline(realms: TwoRealms) -> None:
    realm = realms.target.realm
    keytab = new_client(realm, "waiting")
    properties = realms.target.properties(**OF_KEYTAB | {"sasl.kerberos.keytab": str(keytab)})
    realm.stop()
    problem = unreached(properties, 300)
    assert "requires a Kerberos ticket, and none could be obtained" in problem
    assert "Cannot contact any KDC for realm 'TARGET.TEST'" in problem
    assert "check the KDCs of its realm in krb5.conf" in problem
    realm.start()
    realm.pause()
    try:
        for _ in range(3):
            assert "no answer of a KDC in time" in unreached(properties, 300)
        # libkrb5 still waits, in one thread.
        assert len([thread for thread in threading.enumerate() if thread.name.startswith("the Kerberos ticket of")]) == 1
    finally:
        realm.resume()
    assert cluster_id(properties) == realms.target.node.cluster_id


def test_a_kdc_whose_name_cannot_be_resolved_is_waited_for(
    realms: TwoRealms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "nowhere.conf"
    text = client_config([realms.source.realm]).replace(f"127.0.0.1:{realms.source.realm.port}", "kdc.invalid")
    config.write_text(text, encoding="utf-8")
    monkeypatch.setenv("KRB5_CONFIG", str(config))
    keytab = new_client(realms.source.realm, "unresolved")
    problem = unreached(realms.source.properties(**OF_KEYTAB | {"sasl.kerberos.keytab": str(keytab)}), 5_000)
    assert "check the KDCs of its realm in krb5.conf" in problem


def test_a_krb5_conf_without_a_default_realm_is_said(realms: TwoRealms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "realmless.conf"
    config.write_text("[libdefaults]\n  dns_lookup_realm = false\n", encoding="utf-8")
    monkeypatch.setenv("KRB5_CONFIG", str(config))
    realms.source.realm.admin(f"ktadd -norandkey -k {tmp_path / 'two.keytab'} {CLIENT}")
    realms.target.realm.admin(f"ktadd -norandkey -k {tmp_path / 'two.keytab'} {CLIENT}")
    of_both = {"sasl.kerberos.principal": CLIENT, "sasl.kerberos.keytab": str(tmp_path / "two.keytab")}
    problem = refusal(realms.source.properties(**of_both))
    assert "set default_realm in krb5.conf, or write the realm in sasl.kerberos.principal" in problem


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("listener", ["SHORT", pytest.param("TLS", marks=pytest.mark.long)])
def test_a_mirror_between_two_realms_copies_everything(realms: TwoRealms, tmp_path: Path, topic_name: str, listener: str) -> None:
    conf = mirror_file(tmp_path, realms, topic_name, listener)
    write(realms.source.node.bootstrap, topic_name, ["a", "b"])
    with command(tmp_path, conf, "--available-now") as process:
        assert process.wait(2 * PATIENCE_S) == 0, log_text(tmp_path)
    assert read_values(realms.target.node.bootstrap, topic_name) == ["a", "b"]
    # Tickets are in memory only, and the file of the mirror and its tables name the keytab.
    assert not (tmp_path / "ccache").exists()
