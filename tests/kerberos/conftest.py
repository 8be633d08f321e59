"""Two realms, each with a broker, for tests that need MIT's KDC and the package gssapi; they are skipped without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.kerberos.kerberized_broker import KerberizedBroker
from tests.kerberos.realm import Realm, client_config, missing_programs

from shallow_mirror.local_kafka.server_process import start_together, stop_together

LIFETIME_S = 60


class TwoRealms(NamedTuple):
    source: KerberizedBroker
    target: KerberizedBroker
    early: Realm
    late: Realm
    """Other KDCs of the source's realm, whose clocks are twenty minutes ahead and behind."""


@pytest.fixture(scope="session")
def needs_kdc() -> None:
    missing = missing_programs() + ([] if find_spec("gssapi") else ["the Python package gssapi"])
    if missing:
        pytest.skip(f"Kerberos cannot be tested without {', '.join(missing)}: `make kdc` installs them, on Debian as root")


@pytest.fixture(scope="session")
def two_realms(needs_kdc: None, no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRealms]:
    """Start KDCs and brokers. Tickets of source and target live for a minute."""
    folder = tmp_path_factory.mktemp("kerberos")
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(Realm(folder / name, f"{name.upper()}.TEST", lifetime_s=LIFETIME_S))
            for name in ("source", "target")
        )
        early, late = (
            stack.enter_context(Realm(folder / offset, source.name, lifetime_s=7200, database=source.folder, clock_offset=offset))
            for offset in ("+20m", "-20m")
        )
        brokers = KerberizedBroker(folder / "east", source), KerberizedBroker(folder / "west", target)
        nodes = [broker.node for broker in brokers]
        start_together(nodes)
        stack.callback(stop_together, nodes)
        yield TwoRealms(*brokers, early, late)


@pytest.fixture
def realms(two_realms: TwoRealms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TwoRealms:
    """Return the realms, for clients of this process: a krb5.conf of all of them, and no ticket cache."""
    config = tmp_path / "krb5.conf"
    config.write_text(client_config([two_realms.source.realm, two_realms.target.realm]), encoding="utf-8")
    monkeypatch.setenv("KRB5_CONFIG", str(config))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'ccache'}")
    monkeypatch.delenv("KRB5_CLIENT_KTNAME", raising=False)
    return two_realms
