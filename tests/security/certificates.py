"""Certificate authorities and what they sign, made on the spot. PEM throughout, as files and as text."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


class Identity:
    """A private key and its certificate (chain)."""

    def __init__(self, folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.key, self.certificate, self.name = key, certificate, name
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.key_pem = self._key_pem(serialization.NoEncryption())
        self.certificate_file, self.key_file = folder / f"{name}.crt.pem", folder / f"{name}.key.pem"
        self.keystore_file = folder / f"{name}.store.pem"
        self.certificate_file.write_text(self.certificate_pem)
        self.key_file.write_text(self.key_pem)
        self.keystore_file.write_text(self.key_pem + self.certificate_pem)

    def _key_pem(self, encryption: serialization.KeySerializationEncryption) -> str:
        return self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode()

    def encrypted_key_pem(self, password: str) -> str:
        return self._key_pem(serialization.BestAvailableEncryption(password.encode()))


class Authority:
    """A CA of its own key."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._key, self._name = folder, ec.generate_private_key(ec.SECP256R1()), _named(name)
        made = (
            _builder(self._name, self._name, self._key, NOW - DAY, NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.identity = Identity(folder, name, self._key, made)

    def signed(self, name: str, hosts: tuple[str, ...] = (), *, ends: datetime = NOW + DAY) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key, NOW - 3 * DAY, ends).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        return Identity(self._folder, name, key, builder.sign(self._key, hashes.SHA256()))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
