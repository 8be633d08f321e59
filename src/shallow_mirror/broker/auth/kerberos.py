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
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.keytab import keytab_principals
from shallow_mirror.broker.auth.renewed_credential import Lease, RenewedCredential
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import AuthenticationError, MirrorError, RetriableError

DEFAULT_SERVICE = "kafka"
KDC_UNREACHABLE = "KDC_UNREACHABLE"

_MOST_LOGINS = 64
"""So many client configurations of one process keep their tickets."""
_MAX_KEYTAB_BYTES = 1 << 20
_RENEWED_AT, _USED_FOR = 0.6, 0.95
"""Shares of a ticket's life. libkrb5 does not renew one before half of it has passed."""
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
            "every machine that connects, also those of executors"
        ) from None
    # As libkrb5 and Java do it: the names of services are in lower case.
    service = Service(config.value("sasl.kerberos.service.name") or DEFAULT_SERVICE, peer.rpartition(":")[0].lower())
    login = _login(os.getpid(), config.value("sasl.kerberos.principal"), config.value("sasl.kerberos.keytab"))
    try:
        context, token = login.begin(service, deadline)
        yield from exchange(context, token)
    except gssapi.exceptions.GSSError as error:
        raise _located(_problem(error, service, login), where) from None
    except GssExchangeError as error:
        raise AuthenticationError(f"{where}: {error}: check that this is a broker of Kafka, with a keytab of {service}") from None
    except MirrorError as error:
        raise _located(error, where) from None


class Service(NamedTuple):
    name: str
    host: str

    def __str__(self) -> str:
        return f"{self.name}/{self.host}"


class _Ticket(NamedTuple):
    """Where the ticket-granting ticket of a principal is, and the tickets of services that it was used for."""

    principal: str
    cache: str


class Login:
    """The tickets of one principal in one process. Errors name no broker.

    With a keytab they are in memory, for this process alone. The first authentication after `_RENEWED_AT` of a ticket's life
    begins its renewal in the background. A key is tried twice at most then, and once when the ticket has ended.
    """

    def __init__(self, principal: str, keytab: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.principal, self.keytab, self._clock = principal, keytab, clock
        self._cache, self._spare = _new_cache(), _new_cache()
        self._tickets = RenewedCredential(
            f"the Kerberos ticket of {_name(principal, keytab)}", self._new_ticket, late=_no_answer, clock=clock
        )
        self._services: set[Service] = set()
        self._idle: dict[Service, threading.Lock] = {}

    def begin(self, service: Service, deadline: Deadline) -> tuple[Context, bytes]:
        """Return a context with its first token. Raises AuthenticationError, RetriableError, also at the deadline."""
        ticket = self._tickets.get(deadline) if self.keytab else None
        # libkrb5 has no deadline and tries every KDC several times. The thread that waits for it is left behind; it is the only
        # one of this service, because it keeps the lock. A service whose ticket is in the cache needs no KDC.
        idle = self._idle.setdefault(service, threading.Lock())
        if not idle.acquire(timeout=deadline.remaining_ms() / 1000):
            raise _no_answer()
        done: queue.SimpleQueue[tuple[Context, bytes] | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                done.put(self._first_token(service, ticket))
                self._services.add(service)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                done.put(error)
            finally:
                idle.release()

        threading.Thread(target=work, name="kerberos", daemon=True).start()
        try:
            outcome = done.get(timeout=deadline.remaining_ms() / 1000)
        except queue.Empty:
            raise _no_answer() from None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _first_token(self, service: Service, ticket: _Ticket | None) -> tuple[Context, bytes]:
        import gssapi

        try:
            # Without the keytab: libkrb5 would renew the ticket again and again, and hide that it cannot.
            credentials = _acquire(ticket.principal, {"ccache": ticket.cache}) if ticket else _acquire(self.principal, None)
            # An empty realm: that of the client, or the one that its KDC refers to.
            return _first_token(credentials, gssapi.Name(f"{service}@", gssapi.NameType.kerberos_principal))
        except gssapi.exceptions.GSSError as error:
            # At once, and in the thread of the call: libkrb5 keeps the text with its names there until the next error.
            problem = _problem(error, service, self)
            if _code(error) != _SERVICE_UNKNOWN:
                raise problem from None
        try:
            # As krb5.conf says: another realm by its [domain_realm], another name by DNS.
            by_rules = gssapi.Name(f"{service.name}@{service.host}", gssapi.NameType.hostbased_service)
            return _first_token(credentials, by_rules)
        except gssapi.exceptions.GSSError:
            raise problem from None

    def _new_ticket(self) -> Lease[_Ticket]:
        """Get a ticket by the keytab. Raises AuthenticationError, RetriableError."""
        import gssapi

        try:
            principal = self._principal_of_keytab()
            # Not into the cache that is in use: libkrb5 empties it first.
            now = self._clock()
            life_s = self._get_ticket(principal, self._spare)
            if not life_s:
                # libkrb5 keeps an ended ticket that it could not renew. In an empty cache it reports the reason.
                self._spare = _new_cache()
                life_s = self._get_ticket(principal, self._spare)
        except NotImplementedError:
            raise AuthenticationError(
                "this Kerberos library has no credential stores: install MIT Kerberos, or get tickets with kinit and "
                "remove sasl.kerberos.keytab"
            ) from None
        except gssapi.exceptions.GSSError as error:
            raise _problem(error, None, self) from None
        ticket = _Ticket(principal, self._spare)
        if self._tickets.is_valid():
            self._get_service_tickets(ticket)
        self._cache, self._spare = self._spare, self._cache
        # Lives are in whole seconds, rounded up.
        life_s = max(0, life_s - 1)
        return Lease(ticket, now + life_s * _RENEWED_AT, now + life_s * _USED_FOR)

    def _get_ticket(self, principal: str, cache: str) -> int:
        """Return the remaining life in seconds of the ticket that is in the cache then, 0 of an expired one."""
        from gssapi.exceptions import ExpiredCredentialsError

        try:
            return int(_acquire(principal, {"client_keytab": self.keytab, "ccache": cache}).lifetime)
        except ExpiredCredentialsError:
            return 0

    def _get_service_tickets(self, ticket: _Ticket) -> None:
        """Get tickets of the known services into a new cache, so that no authentication needs a KDC while they are valid."""
        for service in tuple(self._services):
            try:
                self._first_token(service, ticket)
            except RetriableError:
                # The KDC stopped to answer. The authentication at the service waits for it, and reports it.
                return
            except AuthenticationError:
                # Reported by the authentication at this service, if there is one: its broker may have left the cluster.
                continue

    def _principal_of_keytab(self) -> str:
        """Return the principal that is to be used. libkrb5 reports each of these as a missing ticket cache."""
        try:
            with Path(self.keytab).open("rb") as file:
                held = keytab_principals(file.read(_MAX_KEYTAB_BYTES))
        except OSError as error:
            raise AuthenticationError(
                f"sasl.kerberos.keytab: cannot read {self.keytab}: {error.strerror}: put the keytab on every machine "
                "that connects, also those of executors, readable for its user"
            ) from None
        except ValueError as error:
            raise AuthenticationError(
                f"sasl.kerberos.keytab: {self.keytab} is no keytab, {error}: export it again (ktadd, ktutil)"
            ) from None
        # A name without a realm is that of the keytab, unless several have it: then the one in the default realm of krb5.conf.
        matching = [name for name in held if self.principal in ("", name, name.rpartition("@")[0])]
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(held) or "no principal"
        if not self.principal:
            raise AuthenticationError(f"{self.keytab} holds keys of {names}: set sasl.kerberos.principal to one")
        if not matching:
            raise AuthenticationError(
                f"{self.keytab} holds no key of {self.principal}, but of {names}: correct sasl.kerberos.principal and "
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
def _login(_pid: int, principal: str, keytab: str) -> Login:
    # By process: a lock that was held when a worker was forked is never released there.
    return Login(principal, keytab)


def _first_token(credentials: Any, service: Any) -> tuple[Context, bytes]:
    from gssapi import MechType, RequirementFlag, SecurityContext

    flags = RequirementFlag.mutual_authentication | RequirementFlag.integrity
    context = SecurityContext(name=service, creds=credentials, usage="initiate", mech=MechType.kerberos, flags=flags)
    return context, context.step()


def _problem(error: Any, service: Service | None, login: Login) -> MirrorError:
    """Return the error without its broker. `service`: None where the ticket is not for one."""
    code, principal = _code(error), _name(login.principal, login.keytab)
    if error.maj_code & _ROUTINE_ERRORS == _CREDENTIALS_EXPIRED or code == _TICKET_EXPIRED:
        return AuthenticationError(f"the ticket of {principal} has expired: {_CLOCKS if login.keytab else _RENEW}")
    reason = " ".join(error.get_all_statuses(error.min_code, False)).strip()
    if code in _NO_ANSWER:
        return RetriableError(KDC_UNREACHABLE, reason)
    if code == _SERVICE_UNKNOWN and service is not None:
        return AuthenticationError(
            f"the KDC knows no service {service} ({reason}): correct sasl.kerberos.service.name, or add that principal; "
            "its host is the one in advertised.listeners or bootstrap.servers"
        )
    others = _OTHERS if login.keytab else f"{_RENEW}; the ticket cache is KRB5CCNAME of this process"
    return AuthenticationError(f"no ticket of {principal}: {reason}: {_REMEDIES.get(code, others)}")


def _no_answer() -> RetriableError:
    return RetriableError(KDC_UNREACHABLE, "no answer of a KDC in time")


def _located(error: MirrorError, where: str) -> MirrorError:
    if isinstance(error, RetriableError):
        return RetriableError(error.error_name, f"{where}: {error.detail}")
    assert isinstance(error, AuthenticationError)
    return AuthenticationError([f"{where}: {problem}" for problem in error.problems])


def _code(error: Any) -> int:
    """Return the code within libkrb5's errors; codes of other libraries are far away from them."""
    return int(error.min_code) - (1 << 32) - _KRB5_ERRORS
