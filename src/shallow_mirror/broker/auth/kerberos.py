"""Everywhere: Kerberos (SASL GSSAPI, RFC 4752): tickets by libkrb5, and the exchange, without a security layer.

The service is `service/host` with the host that is connected to: `advertised.listeners` of the broker, or bootstrap.servers.
libkrb5's own way from a host to a principal asks the DNS for other names of the host first, and takes the name of its address.
"""

from __future__ import annotations

import functools
import itertools
import os
import queue
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.keytab import keytab_principals
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import AuthenticationError, MirrorError, RetriableError

DEFAULT_SERVICE = "kafka"
KDC_UNREACHABLE = "KDC_UNREACHABLE"

_MOST_LOGINS = 64
"""So many client configurations of one process keep their tickets."""
_MAX_KEYTAB_BYTES = 1 << 20
_USED_FOR = 0.6
"""Share of a ticket's life. libkrb5 does not renew one before half of it has passed."""
_RETRY_RENEWAL_S = 30.0
_cache_numbers = itertools.count()

_NO_LAYER = 1
_MUTUAL_AUTHENTICATION = 2
"""Flags of RFC 4752 and RFC 2744."""

_ROUTINE_ERRORS = 0xFF << 16
_CREDENTIALS_EXPIRED = 11 << 16
"""Of RFC 2744. libkrb5 sets no code of its own then."""
_KRB5_ERRORS = -1765328384
"""Codes of libkrb5 count from here; the first 128 are those of the protocol (RFC 4120, 7.5.9)."""
_SERVICE_UNKNOWN, _TICKET_EXPIRED = 7, 32
_NO_ANSWER = {29, 156, 220}
"""KDC_ERR_SVC_UNAVAILABLE, KRB5_KDC_UNREACH, KRB5_REALM_CANT_RESOLVE."""

_RENEW = "run kinit, or set sasl.kerberos.keytab"
_CLOCKS = "synchronise the clocks of this machine, the KDC and the brokers (NTP)"
_NEW_KEYTAB = "export a new keytab of the principal (ktadd) and replace the file"
_REMEDIES = {
    1: "renew the principal in the KDC",
    6: "correct sasl.kerberos.principal and its realm, or add the principal to the KDC",
    14: "export a keytab with a key type that the KDC accepts (permitted_enctypes of krb5.conf)",
    18: "unlock the principal in the KDC",
    23: f"its key has expired: change it, and {_NEW_KEYTAB}",
    24: f"the keytab holds an old key: {_NEW_KEYTAB}",
    31: f"the keytab holds an old key: {_NEW_KEYTAB}",
    33: _CLOCKS,
    37: _CLOCKS,
    154: "name the KDCs of the realm in krb5.conf (KRB5_CONFIG), or correct the realm of sasl.kerberos.principal",
    224: "set default_realm in krb5.conf, or write the realm in sasl.kerberos.principal",
}
_OTHERS = "check krb5.conf, and the ticket with `kinit -k -t KEYTAB PRINCIPAL` and `kvno SERVICE/HOST` on this machine"


class Context(Protocol):
    """The part of `gssapi.SecurityContext` that the exchange uses."""

    @property
    def complete(self) -> bool: ...
    @property
    def actual_flags(self) -> int: ...
    def step(self, token: bytes, /) -> bytes | None: ...
    def wrap(self, message: bytes, encrypt: bool, /) -> Any: ...
    def unwrap(self, message: bytes, /) -> Any: ...


class GssExchangeError(ValueError):
    """What a broker sent is not what a broker with the key of its service sends."""


def exchange(context: Context, token: bytes) -> Generator[bytes, bytes, None]:
    """Yield the messages of the client, beginning with `token`; be sent those of the broker. Raises GssExchangeError.

    Errors of the context are those of its library.
    """
    while not context.complete:
        token = context.step((yield token)) or b""
    if not context.actual_flags & _MUTUAL_AUTHENTICATION:
        raise GssExchangeError("the broker did not prove its identity (mutual authentication)")
    # The client has nothing more to say, and the broker offers its security layers in return for an empty message.
    offer = context.unwrap((yield token)).message
    if len(offer) != 4:
        raise GssExchangeError(f"the broker offers security layers in {len(offer)} bytes, not 4")
    if not offer[0] & _NO_LAYER:
        raise GssExchangeError("the broker insists on a security layer, which Kafka has none of")
    # No layer, therefore no buffer size, and no identity but the principal's own.
    yield context.wrap(bytes([_NO_LAYER, 0, 0, 0]), False).message


def conversation(config: ClientConfig, peer: str, deadline: Deadline) -> Generator[bytes, bytes, None]:
    """Yield the messages of one authentication at `peer`. Raises AuthenticationError, RetriableError."""
    where = f"broker {peer}, GSSAPI"
    try:
        import gssapi
    except (ImportError, OSError) as error:
        raise AuthenticationError(
            f"{where}: the package gssapi cannot be used here ({error}): install MIT Kerberos and shallow-mirror[kerberos] on "
            "every machine of the mirror"
        ) from None
    service = config.value("sasl.kerberos.service.name") or DEFAULT_SERVICE
    # As libkrb5 and Java do it: the names of services are in lower case.
    host = peer.rpartition(":")[0].lower()
    login = _login(os.getpid(), config.value("sasl.kerberos.principal"), config.value("sasl.kerberos.keytab"))
    context, token = login.begin(service, host, where, deadline)
    try:
        yield from exchange(context, token)
    except gssapi.exceptions.GSSError as error:
        raise _problem(error, where, f"{service}/{host}", login) from None
    except GssExchangeError as error:
        raise AuthenticationError(
            f"{where}: {error}: check that this is a broker of Kafka, with a keytab of {service}/{host}"
        ) from None


class _Login:
    """The tickets of one principal in one process.

    With a keytab they are in memory, for this process alone. The first authentication after `_USED_FOR` of their lives renews
    them. Then a key is tried twice at most: a wrong one is reported at once, and a KDC that does not answer is asked again later
    as long as the ticket is valid.
    """

    def __init__(self, principal: str, keytab: str) -> None:
        self.principal, self.keytab = principal, keytab
        self._cache, self._spare = _new_cache(), _new_cache()
        self._ends_at = self._renew_at = 0.0
        self._idle = threading.Lock()

    def begin(self, service: str, host: str, where: str, deadline: Deadline) -> tuple[Context, bytes]:
        """Return a context with its first token. Raises AuthenticationError, RetriableError, also at the deadline."""
        # libkrb5 has no deadline and tries every KDC several times. The thread that waits for it is left behind; it is the only
        # one of this login, because it keeps the lock.
        if not self._idle.acquire(timeout=deadline.remaining_ms() / 1000):
            raise _no_answer(where)
        done: queue.SimpleQueue[tuple[Context, bytes] | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                done.put(self._first_token(service, host, where))
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                done.put(error)
            finally:
                self._idle.release()

        threading.Thread(target=work, name="kerberos", daemon=True).start()
        try:
            outcome = done.get(timeout=deadline.remaining_ms() / 1000)
        except queue.Empty:
            raise _no_answer(where) from None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _first_token(self, service: str, host: str, where: str) -> tuple[Context, bytes]:
        import gssapi

        try:
            credentials = self._credentials(where)
            # An empty realm: that of the client, or the one that its KDC refers to.
            return _first_token(credentials, gssapi.Name(f"{service}/{host}@", gssapi.NameType.kerberos_principal))
        except gssapi.exceptions.GSSError as error:
            # At once, and in the thread of the call: libkrb5 keeps the text with its names there until the next error.
            problem = _problem(error, where, f"{service}/{host}", self)
            if _code(error) != _SERVICE_UNKNOWN:
                raise problem from None
        try:
            # As krb5.conf says: another realm by its [domain_realm], another name by DNS.
            return _first_token(credentials, gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service))
        except gssapi.exceptions.GSSError:
            raise problem from None

    def _credentials(self, where: str) -> Any:
        try:
            if not self.keytab:
                return _acquire(self.principal, None)
            principal = self._principal_of_keytab(where)
            if time.monotonic() >= self._renew_at:
                self._renew(principal)
            # Without the keytab: libkrb5 would renew the ticket again and again, and hide that it cannot.
            return _acquire(principal, {"ccache": self._cache})
        except NotImplementedError:
            raise AuthenticationError(
                f"{where}: this Kerberos library has no credential stores: install MIT Kerberos, or get tickets with kinit and "
                "remove sasl.kerberos.keytab"
            ) from None

    def _renew(self, principal: str) -> None:
        import gssapi

        now = time.monotonic()
        ends_at = now + self._get_ticket(principal, self._cache)
        if ends_at <= self._ends_at + 1:
            # libkrb5 keeps a ticket that it could not renew. In an empty cache it reports the reason.
            try:
                ends_at = now + self._get_ticket(principal, self._spare)
            except gssapi.exceptions.GSSError as error:
                if _code(error) not in _NO_ANSWER or now >= self._ends_at:
                    raise
                self._renew_at = now + _RETRY_RENEWAL_S
                return
            self._cache, self._spare = self._spare, _new_cache()
        self._ends_at, self._renew_at = ends_at, now + (ends_at - now) * _USED_FOR

    def _get_ticket(self, principal: str, cache: str) -> int:
        """Return the remaining life in seconds of the ticket that is in the cache then, 0 of an expired one."""
        from gssapi.exceptions import ExpiredCredentialsError

        try:
            return int(_acquire(principal, {"client_keytab": self.keytab, "ccache": cache}).lifetime)
        except ExpiredCredentialsError:
            return 0

    def _principal_of_keytab(self, where: str) -> str:
        """Return the principal that is to be used. libkrb5 reports each of these as a missing ticket cache."""
        try:
            with Path(self.keytab).open("rb") as file:
                held = keytab_principals(file.read(_MAX_KEYTAB_BYTES))
        except OSError as error:
            raise AuthenticationError(
                f"{where}: sasl.kerberos.keytab: cannot read {self.keytab}: {error.strerror}: put the keytab on every machine "
                "of the mirror, readable for its user"
            ) from None
        except ValueError as error:
            raise AuthenticationError(
                f"{where}: sasl.kerberos.keytab: {self.keytab} is no keytab, {error}: export it again (ktadd, ktutil)"
            ) from None
        # A name without a realm is that of the keytab, unless several have it: then the one in the default realm of krb5.conf.
        matching = [name for name in held if self.principal in ("", name, name.rpartition("@")[0])]
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(held) or "no principal"
        if not self.principal:
            raise AuthenticationError(f"{where}: {self.keytab} holds keys of {names}: set sasl.kerberos.principal to one")
        if not matching:
            raise AuthenticationError(
                f"{where}: {self.keytab} holds no key of {self.principal}, but of {names}: correct sasl.kerberos.principal and "
                "its realm, or export a keytab of it"
            )
        return self.principal


def _acquire(principal: str, store: dict[str, str] | None) -> Any:
    import gssapi

    name = gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None
    return gssapi.Credentials(name=name, usage="initiate", mechs=[gssapi.MechType.kerberos], store=store)


def _new_cache() -> str:
    return f"MEMORY:shallow-mirror-{next(_cache_numbers)}"


def principal_name(config: ClientConfig) -> str:
    """Name the principal in messages."""
    return _name(config.value("sasl.kerberos.principal"), config.value("sasl.kerberos.keytab"))


def _name(principal: str, keytab: str) -> str:
    return principal or (f"the principal of {keytab}" if keytab else "the principal of the ticket cache")


@functools.lru_cache(maxsize=_MOST_LOGINS)
def _login(_pid: int, principal: str, keytab: str) -> _Login:
    # By process: a lock that was held when a worker was forked is never released there.
    return _Login(principal, keytab)


def _first_token(credentials: Any, service: Any) -> tuple[Context, bytes]:
    from gssapi import MechType, RequirementFlag, SecurityContext

    flags = RequirementFlag.mutual_authentication | RequirementFlag.integrity
    context = SecurityContext(name=service, creds=credentials, usage="initiate", mech=MechType.kerberos, flags=flags)
    return context, context.step()


def _problem(error: Any, where: str, service: str, login: _Login) -> MirrorError:
    code, principal = _code(error), _name(login.principal, login.keytab)
    if error.maj_code & _ROUTINE_ERRORS == _CREDENTIALS_EXPIRED or code == _TICKET_EXPIRED:
        return AuthenticationError(f"{where}: the ticket of {principal} has expired: {_CLOCKS if login.keytab else _RENEW}")
    reason = " ".join(error.get_all_statuses(error.min_code, False)).strip()
    if code in _NO_ANSWER:
        return RetriableError(KDC_UNREACHABLE, f"{where}: {reason}")
    if code == _SERVICE_UNKNOWN:
        return AuthenticationError(
            f"{where}: the KDC knows no service {service} ({reason}): correct sasl.kerberos.service.name, or add that principal; "
            "its host is the one in advertised.listeners or bootstrap.servers"
        )
    others = _OTHERS if login.keytab else f"{_RENEW}; the ticket cache is KRB5CCNAME of this process"
    return AuthenticationError(f"{where}: no ticket of {principal}: {reason}: {_REMEDIES.get(code, others)}")


def _no_answer(where: str) -> RetriableError:
    return RetriableError(KDC_UNREACHABLE, f"{where}: no answer of a KDC in time")


def _code(error: Any) -> int:
    """Return the code within libkrb5's errors; codes of other libraries are far away from them."""
    return int(error.min_code) - (1 << 32) - _KRB5_ERRORS
