"""Everywhere: the accepted subset of librdkafka's property names, and why others are refused. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from shallow_mirror.broker.auth.oauth_properties import OAUTH, OAUTH_ALIASES, OAUTH_SECRET, oauth_problems

BOOTSTRAP = "bootstrap.servers"
PROTOCOL = "security.protocol"

DEFAULTS: Mapping[str, str] = {
    BOOTSTRAP: "",
    "client.id": "shallow-mirror",
    "client.rack": "",  # as broker.rack of the brokers nearby: records are read from them (KIP-392)
    PROTOCOL: "plaintext",
    "request.timeout.ms": "30000",  # how long one request may take before the connection is closed
    "socket.connection.setup.timeout.ms": "10000",
    "metadata.max.age.ms": "300000",  # as Java's metadata.max.age.ms
    "receive.message.max.bytes": "100000000",  # the largest answer accepted; socket.request.max.bytes of brokers is 104857600
}
TLS = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.truststore.location",  # Java's name; librdkafka has none
    "ssl.truststore.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
)
KERBEROS = ("sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.keytab")
SASL = ("sasl.mechanism", "sasl.username", "sasl.password", *OAUTH, *KERBEROS)
KNOWN = (*DEFAULTS, *TLS, *SASL)
SECRET = frozenset(
    {
        "sasl.password",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.truststore.password",
        *OAUTH_SECRET,
    }
)
"""Values that are never shown and, where they would travel through Spark, never written out."""

ALIASES = {
    "socket.timeout.ms": "request.timeout.ms",
    "metadata.broker.list": BOOTSTRAP,
    "sasl.mechanisms": "sasl.mechanism",
    **OAUTH_ALIASES,
}
NUMBERS = {name: (1, 2_000_000_000) for name in DEFAULTS if name.endswith(("ms", "bytes"))}

_RECORD_LEVEL = re.compile(
    r"(key|value)\.(de)?serializer|compression\.|linger\.ms|batch\.(size|num\.messages)|queue\.buffering\.|partitioner|acks$|enable\.idempotence|transactional\.id|group\.id|isolation\.level|auto\.offset\.reset"
)
_FOREIGN_SECURITY = (
    (re.compile(r"ssl\.(keystore|truststore)\.type$"), "has no effect: stores are PKCS#12; remove it"),
    (
        re.compile(r"ssl\.(keystore|truststore)\.(key|certificate)"),
        "is a property of Java clients: use ssl.ca.pem, ssl.certificate.pem and ssl.key.pem",
    ),
    (re.compile(r"ssl\.(crl|ocsp)\."), "is not supported: revocation (CRL, OCSP) is not checked; remove it"),
    (re.compile(r"ssl\.key$"), "is a property of Java clients: use ssl.key.pem or ssl.key.location"),
    (
        re.compile(r"sasl\.jaas\.config"),
        "is a property of Java clients: use sasl.username and sasl.password, sasl.oauthbearer.client.id and "
        "sasl.oauthbearer.client.secret, or sasl.kerberos.principal and sasl.kerberos.keytab",
    ),
    (
        re.compile(r"sasl\.kerberos\.(kinit\.cmd|min\.time\.before\.relogin|ticket\.renew\.)"),
        "has no effect: a ticket of sasl.kerberos.keytab is renewed before it ends, without kinit, one of the ticket cache by "
        "what put it there: remove it",
    ),
    (re.compile(r"enable\.sasl\.oauthbearer\."), "is not supported; sasl.mechanism is one of {mechanisms}"),
)
_SECURITY = re.compile(r"(sasl|ssl|https)\.")

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")


def canonical_name(name: str) -> str:
    """Return the property that an alias stands for, other names as they are."""
    return ALIASES.get(name, name)


def name_problem(name: str) -> str | None:
    """Return why a property is not accepted, None for a supported one."""
    if name in KNOWN:
        return None
    if _RECORD_LEVEL.match(name):
        return "has no effect on record batches, which are copied unchanged: remove it"
    for pattern, reason in _FOREIGN_SECURITY:
        if pattern.match(name):
            return reason.format(mechanisms=", ".join(MECHANISMS))
    is_security = _SECURITY.match(name) is not None
    near = difflib.get_close_matches(name, [*KNOWN, *ALIASES], n=1, cutoff=0.8 if is_security else 0.6)
    if is_security and not near:
        return f"is not supported; known are {', '.join((*TLS, *SASL))}"
    return "unknown property; " + (f"did you mean {near[0]}?" if near else f"known are {', '.join(KNOWN)}")


def security_problems(given: Mapping[str, str]) -> list[str]:
    """Return contradictions and missing properties among `given`, by canonical name.

    Each begins with the name of a property. Values of SECRET are not examined.
    """
    protocol, mechanism = given.get(PROTOCOL, "plaintext").lower(), given.get("sasl.mechanism", "").upper()
    if protocol not in PROTOCOLS:
        return [f"{PROTOCOL}: {protocol!r} is not one of {', '.join(PROTOCOLS)}"]
    problems = [*_tls_problems(protocol, given)]
    if not protocol.startswith("sasl"):
        problems += [
            f"{name}: has no effect with {PROTOCOL}: {protocol}; set {PROTOCOL}: sasl_ssl (or sasl_plaintext), or remove it"
            for name in SASL
            if name in given
        ]
    elif mechanism not in MECHANISMS:
        problem = f"{mechanism!r} is not one of" if mechanism else "is missing; it is one of"
        problems.append(f"sasl.mechanism: {problem} {', '.join(MECHANISMS)}")
    elif mechanism == "OAUTHBEARER":
        problems += [
            *_without_effect(mechanism, ("sasl.username", "sasl.password", *KERBEROS), given),
            *oauth_problems(given, given.get(BOOTSTRAP, "")),
        ]
    elif mechanism == "GSSAPI":
        problems += [*_without_effect(mechanism, ("sasl.username", "sasl.password", *OAUTH), given), *_kerberos_problems(given)]
    else:
        problems += [f"{name}: is missing for {mechanism}" for name in ("sasl.username", "sasl.password") if name not in given]
        problems += _without_effect(mechanism, (*OAUTH, *KERBEROS), given)
    return problems


def _without_effect(mechanism: str, names: Iterable[str], given: Mapping[str, str]) -> list[str]:
    return [f"{name}: has no effect with sasl.mechanism: {mechanism}; remove it" for name in names if name in given]


def _kerberos_problems(given: Mapping[str, str]) -> list[str]:
    problems = [f"{name}: is empty: remove it, or give it a value" for name in KERBEROS if given.get(name) == ""]
    if re.search(r"[/@\s]", given.get("sasl.kerberos.service.name", "")):
        problems.append("sasl.kerberos.service.name: is one part of the principal of brokers: kafka of kafka/HOST@REALM")
    return problems


def _tls_problems(protocol: str, given: Mapping[str, str]) -> list[str]:
    if not protocol.endswith("ssl"):
        return [
            f"{name}: has no effect with {PROTOCOL}: {protocol}; set {PROTOCOL}: {protocol.replace('plaintext', 'ssl')}, "
            "or remove it"
            for name in TLS
            if name in given
        ]
    problems = []
    for what in ("ca", "certificate", "key"):
        if f"ssl.{what}.location" in given and f"ssl.{what}.pem" in given:
            problems.append(f"ssl.{what}.pem: is given beside ssl.{what}.location: keep one of them")
    for store, parts in (("keystore", ("certificate", "key")), ("truststore", ("ca",))):
        if f"ssl.{store}.location" in given:
            problems += [
                f"{name}: is given beside ssl.{store}.location: keep one of them"
                for part in parts
                for name in (f"ssl.{part}.location", f"ssl.{part}.pem")
                if name in given
            ]
        elif f"ssl.{store}.password" in given:
            problems.append(f"ssl.{store}.password: is given without ssl.{store}.location")
    has_certificate, has_key = (
        any(f"ssl.{what}.{how}" in given for how in ("location", "pem")) for what in ("certificate", "key")
    )
    if has_certificate and not has_key:
        problems.append("ssl.key.location: is missing (or ssl.key.pem): a client certificate needs its private key")
    if has_key and not has_certificate:
        problems.append("ssl.certificate.location: is missing (or ssl.certificate.pem): a private key needs its certificate")
    if "ssl.key.password" in given and not has_key:
        problems.append("ssl.key.password: is given without a private key (ssl.key.location or ssl.key.pem)")
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm not in ("https", "none"):
        problems.append(f"ssl.endpoint.identification.algorithm: {algorithm!r} is neither https nor none")
    verification = given.get("enable.ssl.certificate.verification", "true")
    if verification not in ("true", "false"):
        problems.append(f"enable.ssl.certificate.verification: {verification!r} is neither true nor false")
    return problems
