"""`import`: mirror files from configurations of MirrorMaker 2, and what has no counterpart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from shallow_mirror import cli
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.mirror_maker import mirror_files

SECRETS = ("s3cret;pass", "key-of-the-client", "store-pass", "client-s3cret")

TWO_WAYS = """
clusters = berlin, oslo
berlin.bootstrap.servers = b1:9092, b2:9092
oslo.bootstrap.servers = o1:9093
oslo.security.protocol = SASL_SSL
oslo.sasl.mechanism = SCRAM-SHA-512
oslo.sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="mirror" password="s3cret;pass";
oslo.ssl.truststore.location = /etc/kafka/trust.jks
oslo.ssl.truststore.password = store-pass
berlin.consumer.isolation.level = read_committed
berlin->oslo.enabled = true
berlin->oslo.topics = orders.*, bills-\\\\d+
oslo->berlin.enabled = true
oslo->berlin.topics = .*
oslo->berlin.replication.factor = -1
replication.factor = 3
sync.group.offsets.enabled = true
groups.exclude = tmp-.*
tasks.max = 12
emit.heartbeats.interval.seconds = 5
"""
IDENTITY = """
clusters = main,dr
main.bootstrap.servers = m:9092
main.security.protocol = SSL
main.ssl.keystore.type = PEM
main.ssl.keystore.location = /etc/kafka/client.pem
main.ssl.truststore.type = PEM
main.ssl.truststore.location = /etc/kafka/ca.pem
main.ssl.key.password = key-of-the-client
main.ssl.endpoint.identification.algorithm =
main.consumer.auto.offset.reset = latest
dr.bootstrap.servers = d:9092
dr.producer.compression.type = zstd
main->dr.enabled = true
main->dr.replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
main->dr.topics.blacklist = test-.*
dr->main.enabled = false
sync.topic.configs.enabled = false
sync.topic.acls.enabled = true
refresh.topics.interval.seconds = 30
"""
SEPARATOR = """
clusters=a,b
a.bootstrap.servers=a:1
b.bootstrap.servers=b:1
a->b.enabled=true
replication.policy.separator=_
a.security.protocol=SASL_PLAINTEXT
a.sasl.mechanism=PLAIN
a.sasl.jaas.config=${file:/etc/kafka/secrets.properties:jaas}
config.providers=file
config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
transforms=mask
"""
OAUTH = """
clusters=src,dst
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url=https://id.example.com/token
sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId='mm' clientSecret='client-s3cret' scope='kafka';
src.bootstrap.servers=s:1
dst.bootstrap.servers=d:1
src->dst.enabled=true
src->dst.topics=invoices
"""
CLOUD_AND_KERBEROS = """
clusters=hadoop,msk
hadoop.bootstrap.servers=h:1
hadoop.security.protocol=SASL_PLAINTEXT
hadoop.sasl.kerberos.service.name=kafka
hadoop.sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/etc/mm.keytab" principal="mm@EXAMPLE.ORG";
msk.bootstrap.servers=b-1.x.c2.kafka.eu-west-1.amazonaws.com:9098
msk.security.protocol=SASL_SSL
msk.sasl.mechanism=AWS_MSK_IAM
msk.sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required awsRoleArn="arn:aws:iam::1:role/mm";
msk.sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler
hadoop->msk.enabled=true
"""
CONNECTOR = json.dumps(
    {
        "name": "mirror",
        "config": {
            "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
            "source.cluster.alias": "edge",
            "target.cluster.alias": "core",
            "source.cluster.bootstrap.servers": "e:1",
            "target.cluster.bootstrap.servers": "c:1",
            "topics": "telemetry\\..*",
            "replication.factor": 3,
            "source.consumer.isolation.level": "read_committed",
        },
    }
)

MM2_TOPICS = ["heartbeats", r"mm2-.*\.internal", r".*\.checkpoints\.internal"]
EXCLUDED = [r".*[\-\.]internal", r".*\.replica", *MM2_TOPICS]


def imported(text: str, folder: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the documents of the mirror files that are written, by mirror."""
    (folder / "mm2.properties").write_text(text, encoding="latin-1")
    of_file = mirror_files.read(folder / "mm2.properties", **options)
    written = mirror_files.write(of_file, folder / "out")
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in written}


def told(text: str, folder: Path) -> dict[str, str]:
    """Return the findings of the first mirror and of the file, by property."""
    (folder / "mm2.properties").write_text(text, encoding="latin-1")
    of_file = mirror_files.read(folder / "mm2.properties")
    return {finding.property_name: finding.text for finding in (*of_file.mirrors[0].findings, *of_file.findings)}


def test_two_flows_become_two_mirrors_that_do_not_copy_each_others_copies(tmp_path: Path) -> None:
    mirrors = imported(TWO_WAYS, tmp_path)
    assert list(mirrors) == ["berlin-oslo", "oslo-berlin"]
    oslo = {
        "bootstrap.servers": "o1:9093",
        "security.protocol": "sasl_ssl",
        "ssl.truststore.location": "/etc/kafka/trust.p12",
        "ssl.truststore.password": "${env:OSLO_TRUSTSTORE_PASSWORD}",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "mirror",
        "sasl.password": "${env:OSLO_PASSWORD}",
    }
    groups = {"sync": "60 seconds", "include": [".*"], "exclude": ["tmp-.*"]}
    assert mirrors["berlin-oslo"] == {
        "mirror": "berlin-oslo",
        "source": {"alias": "berlin", "client": {"bootstrap.servers": "b1:9092, b2:9092"}},
        "target": {"alias": "oslo", "client": oslo},
        "topics": {
            "include": ["orders.*", r"bills-\d+"],
            "exclude": [*EXCLUDED, r"(.*\.)?oslo\..*"],
            "target_name": "{source}.{topic}",
            "replication_factor": 3,
            "configs": "sync",
        },
        "groups": groups,
        "tables": "berlin-oslo-tables",
    }
    back = mirrors["oslo-berlin"]
    assert back["source"] == {"alias": "oslo", "client": oslo}
    assert "replication_factor" not in back["topics"]
    assert [name for name in ("orders", "berlin.orders", "x.berlin.orders") if is_mirrored(back, name)] == ["orders"]


def is_mirrored(document: Mapping[str, Any], topic: str) -> bool:
    topics = document["topics"]
    return any(re.fullmatch(pattern, topic) for pattern in topics["include"]) and not any(
        re.fullmatch(pattern, topic) for pattern in topics["exclude"]
    )


def test_unchanged_names_pem_files_and_intervals_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (document,) = imported(IDENTITY, tmp_path).values()
    assert document["source"]["client"] == {
        "bootstrap.servers": "m:9092",
        "security.protocol": "ssl",
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.ca.location": "/etc/kafka/ca.pem",
        "ssl.certificate.location": "/etc/kafka/client.pem",
        "ssl.key.location": "/etc/kafka/client.pem",
        "ssl.key.password": "${env:MAIN_SSL_KEY_PASSWORD}",
    }
    assert document["topics"] == {
        "include": [".*"],
        "exclude": ["test-.*", *MM2_TOPICS],
        "target_name": "{topic}",
        "configs": "create",
        "discovery": "30 seconds",
    }
    assert document["read"] == {"start": "latest"}
    assert document["acls"] == {"sync": "600 seconds"}
    assert "groups" not in document
    monkeypatch.setenv("MAIN_SSL_KEY_PASSWORD", "x")
    assert "(isolation.level = read_uncommitted)" in told(IDENTITY, tmp_path)


def test_another_separator_and_a_login_of_a_configuration_provider(tmp_path: Path) -> None:
    (document,) = imported(SEPARATOR, tmp_path).values()
    assert document["topics"]["target_name"] == "{source}_{topic}"
    assert document["topics"]["exclude"][-1] == "(.*_)?b_.*"
    assert document["source"]["client"]["sasl.password"] == "${env:A_PASSWORD}"
    findings = told(SEPARATOR, tmp_path)
    assert findings["transforms"].startswith("changes records")
    assert findings["a: sasl.jaas.config"].startswith("a configuration provider of Kafka has the value")


def test_a_login_of_all_clusters_belongs_to_each(tmp_path: Path) -> None:
    (document,) = imported(OAUTH, tmp_path).values()
    for side, alias in (("source", "SRC"), ("target", "DST")):
        client = document[side]["client"]
        assert client.pop("bootstrap.servers")
        assert client == {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": "https://id.example.com/token",
            "sasl.oauthbearer.client.id": "mm",
            "sasl.oauthbearer.client.secret": f"${{env:{alias}_CLIENT_SECRET}}",
            "sasl.oauthbearer.scope": "kafka",
        }


def test_kerberos_and_iam_of_amazon_are_taken_over(tmp_path: Path) -> None:
    (document,) = imported(CLOUD_AND_KERBEROS, tmp_path).values()
    assert document["source"]["client"] == {
        "bootstrap.servers": "h:1",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": "mm@EXAMPLE.ORG",
        "sasl.kerberos.keytab": "/etc/mm.keytab",
    }
    assert document["target"]["client"] == {
        "bootstrap.servers": "b-1.x.c2.kafka.eu-west-1.amazonaws.com:9098",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "aws_msk_iam",
        "sasl.oauthbearer.config": "role.arn=arn:aws:iam::1:role/mm",
    }
    assert not [name for name in told(CLOUD_AND_KERBEROS, tmp_path) if "sasl" in name]


def test_the_json_of_a_connector_is_one_flow(tmp_path: Path) -> None:
    (document,) = imported(CONNECTOR, tmp_path).values()
    assert document["mirror"] == "edge-core"
    assert document["source"] == {"alias": "edge", "client": {"bootstrap.servers": "e:1"}}
    assert document["target"] == {"alias": "core", "client": {"bootstrap.servers": "c:1"}}
    assert document["topics"]["include"] == [r"telemetry\..*"]
    assert set(told(CONNECTOR, tmp_path)) == {"(sync.topic.acls.enabled = true)"}


@pytest.mark.slow
@pytest.mark.parametrize("text", [TWO_WAYS, IDENTITY, SEPARATOR, OAUTH, CLOUD_AND_KERBEROS, CONNECTOR])
def test_a_written_file_is_a_mirror_file_and_holds_no_secret(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mm2.properties").write_text(text, encoding="latin-1")
    for arguments in ([], ["--force", "--json"]):
        with pytest.raises(SystemExit) as end:
            cli.main(["import", str(tmp_path / "mm2.properties"), "--to", str(tmp_path / "out"), *arguments])
        assert end.value.code == 0
    said = capsys.readouterr().out
    document = json.loads(said.splitlines()[-1])
    for mirror in document["mirrors"]:
        for variable in mirror["variables"]:
            monkeypatch.setenv(variable["name"], "x")
        assert mirror["problems"] == []
        if "/etc/" not in Path(mirror["file"]).read_text(encoding="utf-8"):
            assert MirrorConfig.load(mirror["file"]).mirror == mirror["mirror"]
        said += Path(mirror["file"]).read_text(encoding="utf-8")
    assert not [secret for secret in SECRETS if secret in said]


def test_files_that_exist_are_not_overwritten(tmp_path: Path) -> None:
    imported(TWO_WAYS, tmp_path)
    (tmp_path / "out" / "berlin-oslo.yaml").unlink()
    with pytest.raises(ConfigError, match=r"oslo-berlin\.yaml exists: --force"):
        imported(TWO_WAYS, tmp_path)
    assert not (tmp_path / "out" / "berlin-oslo.yaml").exists()


def test_a_mechanism_that_is_not_supported_has_to_be_corrected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TWO_WAYS.replace("SCRAM-SHA-512", "CUSTOM")
    (tmp_path / "mm2.properties").write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit) as end:
        cli.main(["import", str(tmp_path / "mm2.properties"), "--to", str(tmp_path / "out")])
    assert end.value.code == 1
    assert "Correct this before `shallow-mirror run`" in capsys.readouterr().out


BASE = "clusters=a,b\na.bootstrap.servers=a:1\nb.bootstrap.servers=b:1\na->b.enabled=true\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a=1", "mm2.properties has neither `clusters`"),
        ("clusters=a,b", "no flow is enabled: it needs a line such as a->b.enabled = true"),
        ("clusters=a,b\na->c.enabled=true", "c is not in clusters = a, b"),
        ("clusters=a b,c\n", "clusters: 'a b' cannot name a cluster"),
        ("clusters=a,b\na->b.enabled=true\nb.bootstrap.servers=b:1", "a.bootstrap.servers is missing"),
        (BASE + "topics=\\\\p{L}+", r"topics: \\p\{L\}\+: .* has no counterpart"),
        (BASE + "topics=", "topics is empty for a-b"),
        (BASE + "replication.factor=three", "replication.factor: 'three' is not a whole number"),
        (BASE + "replication.policy.class=com.example.Policy", "com.example.Policy is a class of your own.*--target-name"),
        (BASE + "topics=\\u12", "line 5: "),
    ],
)
def test_what_cannot_be_known_is_asked_for(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        imported(text, tmp_path)
    assert not (tmp_path / "out").exists()


def test_names_of_an_unknown_policy_can_be_given(tmp_path: Path) -> None:
    text = BASE + "replication.policy.class=com.example.Policy"
    (document,) = imported(text, tmp_path, target_name="copy-{topic}").values()
    assert document["topics"]["target_name"] == "copy-{topic}"


def test_what_is_unknown_is_listed(tmp_path: Path) -> None:
    text = (
        BASE
        + "foo.bar=1\na->b.offset.lag.max=10\na.consumer.fetch.min.bytes=1\na.consumer.foo=2\ntopic.filter.class=com.example.F"
    )
    assert set(told(text, tmp_path)) == {
        "foo.bar",
        "a: foo",
        "topic.filter.class",
        "(replication.factor = 2)",
        "(isolation.level = read_uncommitted)",
        "(sync.topic.acls.enabled = true)",
    }


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.properties: No such file"):
        mirror_files.read(tmp_path / "nothing.properties")
    (tmp_path / "large").write_bytes(b"#" * (5 << 20))
    with pytest.raises(ConfigError, match="large has more than 4 MiB"):
        mirror_files.read(tmp_path / "large")
