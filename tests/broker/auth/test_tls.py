"""TLS against small servers of this process: settings, key files, and the byte stream."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from tests.security.certificates import DAY, NOW, Authority, Identity
from tests.support.deadlines import deadline

from shallow_mirror.broker.auth import ClientConfig, TlsSettings
from shallow_mirror.broker.auth.connection_factory import REREAD_AFTER_S, ConnectionOpener
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.tls_transport import TlsTransport
from shallow_mirror.broker.net.transport import first_readable
from shallow_mirror.errors import ConfigError, RetriableError

HERE = ("127.0.0.1",)


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, stranger = Authority(folder, "ca"), Authority(folder, "stranger")
        self.ca_file = self.authority.identity.certificate_file
        self.strange_ca_file = stranger.identity.certificate_file
        self.here, self.elsewhere = self.authority.signed("here", HERE), self.authority.signed("elsewhere", ("example.org",))
        self.expired = self.authority.signed("expired", HERE, ends=NOW - DAY)
        self.client, self.other = self.authority.signed("client"), self.authority.signed("other")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def settings(**properties: Any) -> TlsSettings:
    given = {
        "bootstrap.servers": "x:1",
        "security.protocol": "ssl",
        **{name.replace("__", "."): property_ for name, property_ in properties.items()},
    }
    return TlsSettings.of(ClientConfig.from_properties(given, allows_literal_secrets=True))


@contextlib.contextmanager
def server(identity: Identity, serve: Callable[[ssl.SSLSocket], None]) -> Iterator[int]:
    """One connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate_file, identity.key_file)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True) as wrapped:
                serve(wrapped)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)
        assert not thread.is_alive()


def connected(port: int, given: TlsSettings) -> TlsTransport:
    transport = TlsTransport("127.0.0.1", port, given.context(), deadline())
    try:
        transport.handshake(deadline())
    except BaseException:
        transport.close()
        raise
    return transport


def nothing(_: ssl.SSLSocket) -> None:
    return None


def test_many_parts_small_and_large_go_there_and_back(certificates: Certificates) -> None:
    parts = [bytes([size % 251]) * size for size in (1, 61, 5_000, 20_000, 3, 3_000_000, 0, 61, 16_384, 100)]
    sent = b"".join(parts)

    def echo(peer: ssl.SSLSocket) -> None:
        received = bytearray()
        while len(received) < len(sent):
            received += peer.recv(1 << 16)
        peer.sendall(received)

    with server(certificates.here, echo) as port:
        transport = connected(port, settings(ssl__ca__location=certificates.ca_file))
        transport.send_parts([memoryview(part) for part in parts], deadline())
        back = bytearray(len(sent))
        view = memoryview(back)
        assert first_readable([transport], deadline()) is transport
        transport.recv_into(view[:10], deadline())
        assert transport.has_pending()
        assert first_readable([transport], deadline(0)) is transport
        transport.recv_into(view[10:], deadline())
        transport.close()
    assert bytes(back) == sent


def test_responses_are_taken_while_the_broker_takes_no_requests(certificates: Certificates) -> None:
    count, size = 500, 16_000  # in sum more than all buffers between the two hold

    def respond_to_each(peer: ssl.SSLSocket) -> None:
        with peer.makefile("rb") as requests:
            for _ in range(count):
                head = requests.read(8)
                requests.read(size - 4)
                peer.sendall(size.to_bytes(4, "big") + head[4:] + bytes(size - 4))

    with server(certificates.here, respond_to_each) as port:
        transport = connected(port, settings(ssl__ca__location=certificates.ca_file))
        connection = Connection(transport, "test", 1 << 20)
        for number in range(count):
            head = size.to_bytes(4, "big") + number.to_bytes(4, "big")
            connection.send(number, [head, bytes(size - 4)], deadline(20_000))
        for number in range(count):
            assert int.from_bytes(connection.receive(deadline())[:4], "big") == number
        connection.close()


def test_a_silent_peer_is_given_up_and_one_that_leaves_is_reported(certificates: Certificates) -> None:
    over = threading.Event()

    def be_silent(_: ssl.SSLSocket) -> None:
        over.wait(10)

    with server(certificates.here, be_silent) as port:
        transport = connected(port, settings(ssl__ca__location=certificates.ca_file))
        with pytest.raises(RetriableError, match="receiving from"):
            transport.recv_into(memoryview(bytearray(1)), deadline(100))
        over.set()
        with pytest.raises(RetriableError, match="closed the connection"):
            transport.recv_into(memoryview(bytearray(1)), deadline())
        transport.close()


@pytest.mark.parametrize(
    ("identity", "properties", "message"),
    [
        ("here", {"ssl__ca__location": "strange_ca_file"}, "a CA that is not trusted here"),
        ("here", {}, "set ssl.ca.location"),
        ("expired", {"ssl__ca__location": "ca_file"}, "has expired"),
        ("elsewhere", {"ssl__ca__location": "ca_file"}, "is for other hosts"),
    ],
)
def test_a_server_that_cannot_be_trusted_is_refused(
    certificates: Certificates, identity: str, properties: dict[str, str], message: str
) -> None:
    with server(getattr(certificates, identity), nothing) as port:
        with pytest.raises(ConfigError, match=message):
            connected(port, settings(**{name: getattr(certificates, value) for name, value in properties.items()}))


@pytest.mark.parametrize(
    ("identity", "properties"),
    [
        ("elsewhere", {"ssl__ca__location": "ca_file", "ssl__endpoint__identification__algorithm": "none"}),
        ("expired", {"enable__ssl__certificate__verification": False}),
    ],
)
def test_checks_can_be_left_out_one_by_one(certificates: Certificates, identity: str, properties: dict[str, Any]) -> None:
    with server(getattr(certificates, identity), nothing) as port:
        connected(
            port, settings(**{name: getattr(certificates, str(value), value) for name, value in properties.items()})
        ).close()


def test_certificates_and_keys_may_be_written_inline_also_encrypted_and_on_one_line(certificates: Certificates) -> None:
    inline = settings(
        ssl__ca__pem=certificates.authority.identity.certificate_pem.replace("\n", "\\n"),
        ssl__certificate__pem=certificates.client.certificate_pem,
        ssl__key__pem=certificates.client.encrypted_key_pem("open-me"),
        ssl__key__password="open-me",
    )
    with server(certificates.here, nothing) as port:
        connected(port, inline).close()
    assert "PRIVATE" not in repr(inline)
    assert "open-me" not in repr(inline)


def test_settings_are_equal_until_a_file_changes(certificates: Certificates, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(certificates.ca_file.read_text())
    first = settings(ssl__ca__location=file)
    assert first == settings(ssl__ca__location=file)
    file.write_text(certificates.strange_ca_file.read_text())
    assert first != settings(ssl__ca__location=file)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"ssl__ca__location": "/not/there.pem"}, r"ssl\.ca\.location: cannot read /not/there\.pem: No such file"),
        ({"ssl__ca__location": "{client.key_file}"}, r"ssl\.ca\.location: .*client\.key\.pem: holds no certificate"),
        ({"ssl__ca__location": "{folder}/store.p12"}, r"store\.p12 is not PEM"),
        (
            {"ssl__key__location": "{other.key_file}"},
            r"other\.key\.pem: is not the private key of the certificate in .*client\.crt",
        ),
        ({"ssl__key__location": "{client.certificate_file}"}, "holds no private key in PEM"),
        ({"ssl__certificate__location": "{client.key_file}"}, r"ssl\.certificate\.location: .*: holds no certificate"),
        ({"ssl__key__location": "{folder}/encrypted.pem"}, "the private key is encrypted: set ssl.key.password"),
        ({"ssl__key__location": "{folder}/encrypted.pem", "ssl__key__password": "no"}, "ssl.key.password: does not open"),
        ({"ssl__key__location": "{folder}/damaged.pem"}, "damaged PEM"),
    ],
)
def test_key_files_that_do_not_fit_are_named(certificates: Certificates, properties: dict[str, str], message: str) -> None:
    (certificates.folder / "store.p12").write_bytes(b"\x30\x82\xff\xfe")
    (certificates.folder / "encrypted.pem").write_text(certificates.client.encrypted_key_pem("yes"))
    (certificates.folder / "damaged.pem").write_text(certificates.client.key_pem.replace("MI", "!!"))
    usual = {"ssl__certificate__location": "{client.certificate_file}", "ssl__key__location": "{client.key_file}"}
    given = {name: value.format(**vars(certificates)) for name, value in (usual | properties).items()}
    with pytest.raises(ConfigError, match=message):
        settings(**given).context()


STORE_PASSWORD = "pa55-of-the-store"


def write_store(path: Path, identity: Identity | None, trusted: Identity, password: str = STORE_PASSWORD) -> Path:
    encryption = serialization.BestAvailableEncryption(password.encode())
    key, certificate = (identity.key, identity.certificate) if identity else (None, None)
    path.write_bytes(pkcs12.serialize_key_and_certificates(b"client", key, certificate, [trusted.certificate], encryption))
    return path


def peer_name(peer: ssl.SSLSocket) -> str:
    certificate: Any = peer.getpeercert()
    return str(certificate["subject"][0][0][1])


@contextlib.contextmanager
def asking_server(certificates: Certificates, count: int) -> Iterator[tuple[int, list[str]]]:
    """`count` connections, each with a client certificate. Yields the port and the names of the clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.here.certificate_file, certificates.here.key_file)
    context.load_verify_locations(certificates.ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    names: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            for _ in range(count):
                peer, _ = listener.accept()
                with peer, contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True) as wrapped:
                    names.append(peer_name(wrapped))

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1], names
        thread.join(10)
        assert not thread.is_alive()


def test_key_store_and_trust_store_are_read_as_they_are(certificates: Certificates, tmp_path: Path) -> None:
    authority = certificates.authority.identity
    identity = write_store(tmp_path / "client.p12", certificates.client, authority)
    trusted = write_store(tmp_path / "ca.p12", None, authority)
    given = {
        "ssl__keystore__location": identity,
        "ssl__keystore__password": STORE_PASSWORD,
        "ssl__truststore__location": trusted,
        "ssl__truststore__password": STORE_PASSWORD,
    }
    with asking_server(certificates, 1) as (port, names):
        connected(port, settings(**given)).close()
    assert names == ["client"]
    assert STORE_PASSWORD not in repr(settings(**given))
    assert "PRIVATE" not in repr(settings(**given))


@pytest.mark.brokers  # for Java's keytool
def test_stores_that_keytool_made_are_read(certificates: Certificates, tmp_path: Path) -> None:
    keytool = shutil.which("keytool")
    assert keytool is not None, "Java has it"
    store = tmp_path / "truststore.p12"
    imported = ["-importcert", "-noprompt", "-alias", "ca", "-file", str(certificates.ca_file), "-storepass", STORE_PASSWORD]
    for kind, path in (("PKCS12", store), ("JKS", tmp_path / "truststore.jks")):
        subprocess.run(
            [keytool, *imported, "-keystore", str(path), "-storetype", kind], check=True, capture_output=True, timeout=60
        )
    trusting = settings(ssl__truststore__location=store, ssl__truststore__password=STORE_PASSWORD)
    with server(certificates.here, nothing) as port:
        connected(port, trusting).close()
    given = {"ssl__truststore__location": tmp_path / "truststore.jks", "ssl__truststore__password": STORE_PASSWORD}
    with pytest.raises(ConfigError) as caught:
        settings(**given)
    # The command of the message works.
    command = str(caught.value).partition("PKCS#12: ")[2].split()
    store.unlink()
    subprocess.run(
        [*command, "-srcstorepass", STORE_PASSWORD, "-deststorepass", STORE_PASSWORD],
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert settings(ssl__truststore__location=store, ssl__truststore__password=STORE_PASSWORD).ca == trusting.ca


@pytest.mark.parametrize(
    ("content", "password", "message"),
    [
        ("client", "wrong", r"ssl\.keystore\.password: does not open .*store \(or the file is damaged\)"),
        ("client", "", r"ssl\.keystore\.password: is missing for .*store"),
        ("trusted", STORE_PASSWORD, "holds no private key with its certificate: use the key store of the client"),
        (bytes.fromhex("feedfeed00000002"), STORE_PASSWORD, r"is a Java key store \(JKS\): convert it to PKCS#12: keytool"),
        (b"-----BEGIN CERTIFICATE-----", STORE_PASSWORD, r"is PEM, not PKCS#12: set ssl\.certificate\.location"),
        (b"nothing", STORE_PASSWORD, "is not PKCS#12"),
        (None, STORE_PASSWORD, r"ssl\.keystore\.location: cannot read .*store: No such file"),
    ],
)
def test_a_store_that_cannot_be_read_is_explained(
    certificates: Certificates, tmp_path: Path, content: str | bytes | None, password: str, message: str
) -> None:
    path = tmp_path / "store"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        write_store(path, certificates.client if content == "client" else None, certificates.authority.identity)
    given = {"ssl__keystore__location": path} | ({"ssl__keystore__password": password} if password else {})
    with pytest.raises(ConfigError, match=message) as caught:
        settings(**given)
    assert STORE_PASSWORD not in str(caught.value)


def test_stores_without_their_library_name_the_extra(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path / "store", certificates.client, certificates.authority.identity)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(ConfigError, match=r"pip install 'shallow-mirror\[keystores\]'"):
        settings(ssl__keystore__location=store, ssl__keystore__password=STORE_PASSWORD)


def opener(properties: dict[str, Any], sleep: Callable[[float], None] = time.sleep) -> ConnectionOpener:
    given = {"bootstrap.servers": "x:1", "security.protocol": "ssl"} | properties
    return ConnectionOpener(ClientConfig.from_properties(given, allows_literal_secrets=True), sleep=sleep)


@pytest.mark.parametrize("kind", ["pem", "store"])
def test_a_certificate_that_was_replaced_on_disk_is_used_by_the_next_connection(
    certificates: Certificates, tmp_path: Path, kind: str
) -> None:
    def write(identity: Identity) -> dict[str, Any]:
        if kind == "store":
            write_store(tmp_path / "store.p12", identity, certificates.authority.identity)
            return {"ssl.keystore.location": tmp_path / "store.p12", "ssl.keystore.password": STORE_PASSWORD}
        (tmp_path / "crt.pem").write_text(identity.certificate_pem)
        (tmp_path / "key.pem").write_text(identity.key_pem)
        return {"ssl.certificate.location": tmp_path / "crt.pem", "ssl.key.location": tmp_path / "key.pem"}

    opened = opener(write(certificates.client) | {"ssl.ca.location": certificates.ca_file})
    contexts = []
    for identity in (certificates.client, certificates.client, certificates.other):
        write(identity)
        contexts.append(opened._context())
        with asking_server(certificates, 1) as (port, names):
            transport = TlsTransport("127.0.0.1", port, contexts[-1], deadline())
            transport.handshake(deadline())
            transport.close()
        assert names == [identity.name]
    assert contexts[0] is contexts[1]  # made again only when a file changed


def test_files_that_do_not_fit_while_they_are_replaced_are_read_again(certificates: Certificates, tmp_path: Path) -> None:
    certificate, key = tmp_path / "crt.pem", tmp_path / "key.pem"
    certificate.write_text(certificates.other.certificate_pem)
    key.write_text(certificates.client.key_pem)  # the old one
    pauses: list[float] = []

    def replace_key(pause_s: float) -> None:
        pauses.append(pause_s)
        key.write_text(certificates.other.key_pem)

    files = {"ssl.certificate.location": certificate, "ssl.key.location": key, "ssl.ca.location": certificates.ca_file}
    assert opener(files, replace_key)._context()
    assert pauses == [REREAD_AFTER_S[0]]
    key.write_text(certificates.client.key_pem)
    with pytest.raises(ConfigError, match="is not the private key of the certificate"):
        opener(files, pauses.append)._context()
    assert tuple(pauses[1:]) == REREAD_AFTER_S
