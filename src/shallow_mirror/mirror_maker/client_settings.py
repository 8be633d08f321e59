"""Pure: client properties of Java as those of a mirror file. No secret is copied: a reference is, and the user sets its value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from shallow_mirror.broker.auth import KNOWN, MECHANISMS
from shallow_mirror.errors import ConfigError
from shallow_mirror.mirror_maker.findings import Finding, Variable, variable_name
from shallow_mirror.mirror_maker.flows import Flow

_SAME_NAME = ("client.rack", "request.timeout.ms", "socket.connection.setup.timeout.ms", "metadata.max.age.ms")
_WITHOUT_EFFECT = re.compile(
    r"(alias|client\.id|(key|value)\.(de)?serializer|.*converter|compression\.type|linger\.ms|batch\.size|acks|buffer\.memory|max\.request\.size"
    r"|max\.in\.flight\.requests\.per\.connection|delivery\.timeout\.ms|enable\.idempotence|retries|retry\.backoff.*|fetch\..*"
    r"|max\.poll\..*|max\.partition\.fetch\.bytes|(send|receive)\.buffer\.bytes|connections\.max\.idle\.ms|reconnect\..*"
    r"|default\.api\.timeout\.ms|session\.timeout\.ms|heartbeat\.interval\.ms|group\.id|enable\.auto\.commit|partitioner\..*"
    r"|metric.*|interceptor\.classes|ssl\.(protocol|enabled\.protocols|provider)|transactional\.id|transaction\.timeout\.ms)"
)
"""Of clients that open and build batches, or of parts of Java's client."""

_OPTION = re.compile(r"(\S+?)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s;]+))")
_LOGIN_MODULE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*\Z", re.DOTALL | re.IGNORECASE)
_MSK_IAM = "AWS_MSK_IAM"
_MSK_OPTIONS = {
    "awsRoleArn": "role.arn",
    "awsRoleSessionName": "role.session.name",
    "awsStsRegion": "region",
    "awsProfileName": "profile",
}
_KNOWN_HANDLERS = ("OAuthBearerLoginCallbackHandler", "IAMClientCallbackHandler")
_REFERENCE = re.compile(r"\$\{[^}]*\}")
_READ_BY_NAME = (
    "bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.jaas.config", "ssl.endpoint.identification.algorithm",
    "sasl.oauthbearer.token.endpoint.url", "auto.offset.reset", "isolation.level",
)  # fmt: skip


@dataclass(slots=True)
class ClientSettings:
    """The section `client` of one cluster, with what has to be told of it."""

    alias: str
    properties: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)

    def set_secret(self, name: str, what: str, text: str) -> None:
        """Refer to an environment variable. `what`: the end of its name; `text`: what it has to hold."""
        variable = Variable(variable_name(self.alias, what), text)
        self.properties[name] = f"${{env:{variable.name}}}"
        self.variables.append(variable)

    def tell(self, name: str, text: str) -> None:
        self.findings.append(Finding(f"{self.alias}: {name}", text))


def client_settings(flow: Flow, alias: str, where: str) -> ClientSettings:
    """Return the settings of the clients of a cluster. Raises ConfigError without bootstrap servers."""
    settings = ClientSettings(alias)

    def value(name: str) -> str | None:
        text = flow.client(alias, name)
        if text is not None and _REFERENCE.search(text):
            settings.set_secret(name, name, f"what {text} stands for")
            settings.tell(name, "a configuration provider of Kafka has the value: set the environment variable")
            return settings.properties.pop(name)
        return text

    bootstrap = value("bootstrap.servers")
    if not bootstrap:
        raise ConfigError(f"{where}: {alias}.bootstrap.servers is missing: MirrorMaker 2 does not start without it either")
    settings.properties["bootstrap.servers"] = bootstrap
    protocol = (value("security.protocol") or "PLAINTEXT").lower()
    if protocol != "plaintext":
        settings.properties["security.protocol"] = protocol
    if protocol.endswith("ssl"):
        _take_tls(settings, value)
    if protocol.startswith("sasl"):
        _take_sasl(settings, value)
    for name in _SAME_NAME:
        if (text := value(name)) is not None and not (name == "client.rack" and alias == flow.target):
            settings.properties[name] = text
    _tell_of_others(settings, flow)
    return settings


def _take_tls(settings: ClientSettings, value: Callable[[str], str | None]) -> None:
    algorithm = value("ssl.endpoint.identification.algorithm")
    if algorithm is not None and algorithm.lower() != "https":
        settings.properties["ssl.endpoint.identification.algorithm"] = "none"
    if (certificates := value("ssl.truststore.certificates")) is not None:
        settings.properties["ssl.ca.pem"] = certificates
    _take_store(settings, value, "truststore", ("ssl.ca.location",))
    if (chain := value("ssl.keystore.certificate.chain")) is not None:
        settings.properties["ssl.certificate.pem"] = chain
    if value("ssl.keystore.key") is not None:
        settings.set_secret("ssl.key.pem", "ssl_key_pem", "the private key of ssl.keystore.key, in PEM")
    locations = ("ssl.certificate.location", "ssl.key.location")
    _take_store(settings, value, "keystore", locations)
    if value("ssl.key.password") is not None:
        settings.set_secret("ssl.key.password", "ssl_key_password", "the password of the private key (ssl.key.password)")


def _take_store(settings: ClientSettings, value: Callable[[str], str | None], store: str, names: tuple[str, ...]) -> None:
    location, kind = value(f"ssl.{store}.location"), (value(f"ssl.{store}.type") or "JKS").upper()
    value(f"ssl.{store}.password")
    if location is None:
        return
    if kind == "PEM":
        settings.properties.update(dict.fromkeys(names, location))
        return
    if kind != "PKCS12":
        p12 = str(PurePosixPath(location).with_suffix(".p12"))
        convert = f"keytool -importkeystore -srckeystore {location} -destkeystore {p12} -deststoretype PKCS12"
        settings.tell(f"ssl.{store}.location", f"a store of Java ({kind}): convert it with `{convert}`")
        location = p12
    settings.properties[f"ssl.{store}.location"] = location
    settings.set_secret(f"ssl.{store}.password", f"{store}_password", f"the password of the {store} (ssl.{store}.password)")


def _take_sasl(settings: ClientSettings, value: Callable[[str], str | None]) -> None:
    mechanism = (value("sasl.mechanism") or "GSSAPI").upper()
    options = _jaas_options(settings, value("sasl.jaas.config"))
    settings.properties["sasl.mechanism"] = "OAUTHBEARER" if mechanism == _MSK_IAM else mechanism
    if mechanism == _MSK_IAM:
        _take_msk_iam(settings, options)
    elif mechanism == "GSSAPI":
        _take_kerberos(settings, value, options)
    elif mechanism == "OAUTHBEARER":
        _take_oauth(settings, value, options)
    elif mechanism in MECHANISMS:
        _take_user(settings, options)
    else:
        settings.tell("sasl.mechanism", f"{mechanism} is not supported: choose one of {', '.join(MECHANISMS)}")
    for name in ("sasl.login.callback.handler.class", "sasl.client.callback.handler.class"):
        if (handler := value(name)) is not None and not handler.endswith(_KNOWN_HANDLERS):
            settings.tell(name, f"{handler} is a class of Java: name a Python function in oauth_cb (module:function)")


def _take_msk_iam(settings: ClientSettings, options: dict[str, str]) -> None:
    """Take over the options of the library aws-msk-iam-auth."""
    settings.properties["sasl.oauthbearer.method"] = "aws_msk_iam"
    chosen = [f"{ours}={options[name]}" for name, ours in _MSK_OPTIONS.items() if name in options]
    if chosen:
        settings.properties["sasl.oauthbearer.config"] = " ".join(chosen)


def _take_kerberos(settings: ClientSettings, value: Callable[[str], str | None], options: dict[str, str]) -> None:
    names = {
        "sasl.kerberos.service.name": value("sasl.kerberos.service.name") or options.get("serviceName"),
        "sasl.kerberos.principal": options.get("principal"),
        "sasl.kerberos.keytab": options.get("keyTab"),
    }
    settings.properties.update({name: text for name, text in names.items() if text is not None})
    if "keyTab" not in options:
        settings.tell("sasl.jaas.config", "names no keyTab: tickets are those of the ticket cache (kinit)")


def _take_user(settings: ClientSettings, options: dict[str, str]) -> None:
    if (username := options.get("username")) is not None and not _REFERENCE.search(username):
        settings.properties["sasl.username"] = username
    else:
        settings.set_secret("sasl.username", "username", "the user name of sasl.jaas.config")
    settings.set_secret("sasl.password", "password", "the password of sasl.jaas.config")


def _take_oauth(settings: ClientSettings, value: Callable[[str], str | None], options: dict[str, str]) -> None:
    settings.properties["sasl.oauthbearer.method"] = "oidc"
    url = value("sasl.oauthbearer.token.endpoint.url")
    if url is None:
        settings.tell("sasl.oauthbearer.token.endpoint.url", "is missing: name a Python function in oauth_cb instead")
    else:
        settings.properties["sasl.oauthbearer.token.endpoint.url"] = url
    client_id = options.get("clientId") or value("sasl.oauthbearer.client.credentials.client.id")
    settings.properties["sasl.oauthbearer.client.id"] = client_id or "unknown"
    if client_id is None:
        settings.tell("sasl.jaas.config", "has no clientId: write sasl.oauthbearer.client.id")
    value("sasl.oauthbearer.client.credentials.client.secret")
    settings.set_secret("sasl.oauthbearer.client.secret", "client_secret", "the client secret of sasl.jaas.config")
    if (scope := options.get("scope") or value("sasl.oauthbearer.scope")) is not None:
        settings.properties["sasl.oauthbearer.scope"] = scope


def _jaas_options(settings: ClientSettings, jaas: str | None) -> dict[str, str]:
    if jaas is None:
        settings.tell("sasl.jaas.config", "is missing: the login came from the JVM (java.security.auth.login.config)")
        return {}
    if _REFERENCE.fullmatch(jaas):
        return {}
    module = _LOGIN_MODULE.match(jaas)
    if module is None:
        settings.tell("sasl.jaas.config", "cannot be read: it is not `<login module> required <options>;`")
        return {}
    return {
        option[1]: re.sub(r"\\(.)", r"\1", option[2] or option[3] or option[4] or "") for option in _OPTION.finditer(module[2])
    }


def _tell_of_others(settings: ClientSettings, flow: Flow) -> None:
    known = {*_READ_BY_NAME, *_SAME_NAME, *KNOWN}
    for name in dict.fromkeys(flow.client_names(settings.alias)):
        if name in known or name.startswith(("ssl.", "sasl.")):
            continue
        flow.client(settings.alias, name)  # it was looked at
        if not _WITHOUT_EFFECT.fullmatch(name):
            settings.tell(name, "has no counterpart")
