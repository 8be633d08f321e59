"""A whole mirror over TLS, SCRAM and OAUTHBEARER, and a look into everything that it wrote."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from deltalake import DeltaTable
from tests.security import secured_cluster as users
from tests.security.secured_cluster import SecuredCluster
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import PATIENCE_S, command, conf_file, create_topic, log_text, read_values, write

from shallow_mirror import cli
from shallow_mirror.commands.options import EXIT_CONFIG
from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.types import TopicPartition

pytestmark = [pytest.mark.brokers, pytest.mark.spark]

STORE_PASSWORD, PASSPHRASE = "pa55-of-the-store", "pa55-of-the-assertion"
ASSERTION_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ASSERTION_PEM = ASSERTION_KEY.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(PASSPHRASE.encode()),
).decode()

_SPARK = """spark.eventLog.enabled true
spark.eventLog.compress false
spark.eventLog.dir {folder}
"""


_RUNTIME = """import sys
from pathlib import Path


class dbutils:
    class secrets:
        @staticmethod
        def get(scope, key):
            assert "pyspark.worker_util" not in sys.modules, "executors and planners have no dbutils"
            assert (scope, key) == ("kafka", "client")
            return Path("{file}").read_text().strip()
"""
"""What a driver of Databricks has and its workers do not."""


@pytest.fixture
def references(
    kind: str, secured: SecuredCluster, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, Any]:
    """Properties of the source (TLS, client certificate, SCRAM) and of the target (OAUTHBEARER) without a secret in them."""
    folder = tmp_path_factory.mktemp("secrets")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    if kind == "stores and assertions":
        return _stores_and_assertions(secured, folder, monkeypatch)
    (folder / "key-password").write_text(users.KEY_PASSWORD + "\n")
    (folder / "client-secret").write_text(users.CLIENT_SECRET + "\n")
    monkeypatch.setenv("SOURCE_PASSWORD", users.PASSWORD)
    monkeypatch.setenv("SOURCE_KEY", secured.client.encrypted_key_pem(users.KEY_PASSWORD))
    source = {
        "sasl.password": "${env:SOURCE_PASSWORD}",
        "ssl.certificate.pem": secured.client.certificate_pem,
        "ssl.key.pem": "${env:SOURCE_KEY}",
        "ssl.key.password": f"${{file:{folder}/key-password}}",
    }
    (folder / "databricks/sdk").mkdir(parents=True)
    (folder / "databricks/sdk/runtime.py").write_text(_RUNTIME.format(file=folder / "client-secret"))
    target = {"sasl.oauthbearer.client.secret": "${secret:kafka/client}"}
    return {"source": secured.properties("SCRAM", **source), "target": secured.properties("OAUTH", **target)}


def _stores_and_assertions(secured: SecuredCluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    identity, authority = secured.client, secured.authority.identity
    encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
    (folder / "client.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(b"client", identity.key, identity.certificate, [authority.certificate], encryption)
    )
    monkeypatch.setenv("SOURCE_PASSWORD", users.PASSWORD)
    monkeypatch.setenv("STORE_PASSWORD", STORE_PASSWORD)
    source = {
        "sasl.password": "${env:SOURCE_PASSWORD}",
        "ssl.ca.location": None,
        "ssl.keystore.location": str(folder / "client.p12"),
        "ssl.keystore.password": "${env:STORE_PASSWORD}",
        "ssl.truststore.location": str(folder / "client.p12"),
        "ssl.truststore.password": "${env:STORE_PASSWORD}",
    }
    secured.tokens.keys[users.CLIENT_ID] = ASSERTION_KEY.public_key()
    (folder / "passphrase").write_text(PASSPHRASE + "\n")
    monkeypatch.setenv("ASSERTION_KEY", ASSERTION_PEM)
    target = {
        "sasl.oauthbearer.client.secret": None,
        "sasl.oauthbearer.client.authentication.method": "private_key_jwt",
        "sasl.oauthbearer.assertion.private.key.pem": "${env:ASSERTION_KEY}",
        "sasl.oauthbearer.assertion.private.key.passphrase": f"${{file:{folder}/passphrase}}",
    }
    return {"source": secured.properties("SCRAM", **source), "target": secured.properties("OAUTH", **target)}


def secrets_of(secured: SecuredCluster) -> dict[str, str]:
    encoded = base64.b64encode(f"{users.CLIENT_ID}:{users.CLIENT_SECRET}".encode()).decode()
    secrets = {
        "password": users.PASSWORD,
        "key password": users.KEY_PASSWORD,
        "client secret": users.CLIENT_SECRET,
        "credentials": encoded,
        "private key": secured.client.key_pem.splitlines()[1],
        "password of the store": STORE_PASSWORD,
        "passphrase": PASSPHRASE,
        "key of the assertion": ASSERTION_PEM.splitlines()[1],
    }
    return secrets | {f"token {number}": token for number, token in enumerate(secured.tokens.issued)}


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file, and the rows of every Delta table, whose files are compressed."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes().decode("latin-1")
        if path.name == "_delta_log":
            yield f"rows of {path.parent.name}", json.dumps(DeltaTable(path.parent).to_pyarrow_table().to_pylist(), default=str)


def found_secrets(folder: Path, secrets: Mapping[str, str]) -> list[str]:
    return [f"{name} in {where}" for where, text in written(folder) for name, secret in secrets.items() if secret in text]


def start_again(folder: Path, conf: Path, *options: str) -> int:
    with command(folder, conf, *options) as process:
        return process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("transfer", "kind"),
    [
        ("direct", "files and secrets"),
        pytest.param("direct", "stores and assertions", marks=pytest.mark.long),
        pytest.param("through-spark", "files and secrets", marks=pytest.mark.long),
    ],
)
def test_a_mirror_over_tls_and_sasl_copies_and_writes_no_secret_anywhere(
    transfer: str,
    secured: SecuredCluster,
    references: Mapping[str, Any],
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for folder in ("spark-conf", "events"):
        (tmp_path / folder).mkdir()
    (tmp_path / "spark-conf/spark-defaults.conf").write_text(_SPARK.format(folder=(tmp_path / "events").as_uri()))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "spark-conf"))
    create_topic(secured.bootstrap, topic_name)
    write(secured.bootstrap, topic_name, ["a", "b"])
    clients = {side: {"alias": alias, "client": references[side]} for side, alias in (("source", "east"), ("target", "west"))}
    conf = conf_file(
        tmp_path, "", "", [topic_name], **clients, topics={"target_name": "{source}.{topic}"}, read={"transfer": transfer}
    )
    copied = f"east.{topic_name}"

    assert start_again(tmp_path, conf, "--available-now") == 0, log_text(tmp_path)
    assert read_values(secured.bootstrap, copied) == ["a", "b"]

    caplog.set_level(logging.DEBUG)
    group = f"readers.{topic_name}"
    topic_partition, copy = TopicPartition(topic_name, 0), TopicPartition(copied, 0)
    with closing(GroupClient(MirrorConfig.load(conf).source.client, "the source")) as view:
        assert view.commit(group, {topic_partition: (1, "")}) == {}
    for name, *options in (("status",), ("verify",), ("preflight",), ("groups", "--group", re.escape(group), "--apply")):
        with pytest.raises(SystemExit) as ended:
            cli.main(["--verbose", name, str(conf), *options])
        assert ended.value.code in (None, 0), capsys.readouterr()
    with closing(GroupClient(MirrorConfig.load(conf).target.client, "the target")) as view:
        offsets = {record.topic_partition: record.offset for record in view.committed([group])[group]}
    assert offsets == {topic_partition: 1, copy: 1}
    printed = capsys.readouterr()
    monkeypatch.setenv("SOURCE_PASSWORD", "not-the-pa55word")
    with pytest.raises(SystemExit) as ended:
        cli.main(["preflight", str(conf)])
    assert ended.value.code == EXIT_CONFIG
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "AuthenticationError" in line]
    assert "refused user mirror,=user (SCRAM-SHA-512)" in line
    assert start_again(tmp_path, conf) == EXIT_CONFIG
    last = log_text(tmp_path).splitlines()[-1]
    assert last.startswith("AuthenticationError: ")
    assert "refused user mirror,=user (SCRAM-SHA-512)" in last

    (tmp_path / "printed").write_text("\n".join((printed.out, printed.err, line, caplog.text, repr(MirrorConfig.load(conf)))))
    assert list((tmp_path / "events").rglob("events*"))
    assert secured.tokens.issued
    assert found_secrets(tmp_path, {"reference": "${env:SOURCE_PASSWORD}"})
    assert not found_secrets(tmp_path, secrets_of(secured) | {"wrong password": "not-the-pa55word"})
    assert runs.topics_of(secured.bootstrap)[copied] == 1
