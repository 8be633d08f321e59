"""Everywhere: bearer tokens of a user's callable, which has the signature of confluent-kafka's `oauth_cb`."""

from __future__ import annotations

import difflib
import importlib
import urllib.error
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.tokens.refusals import may_pass
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

CALLBACK_FAILED = "OAUTH_CB_FAILED"

_EXPECTED = "(token, seconds since the epoch when it expires)"


def token_of_callable(config: ClientConfig) -> Token:
    """Call the user's function, which has the signature of confluent-kafka's `oauth_cb`.

    It takes a text and returns (token, seconds since the epoch when it expires), optionally with a principal and a dict of
    extensions.
    """
    name, argument = config.value("oauth_cb"), config.value("sasl.oauthbearer.config")
    source = _import_callable(name)
    try:
        result = source(argument)
    except MirrorError:
        raise
    except OSError as error:
        raise _callable_error(name, error) from None
    except Exception as error:  # noqa: BLE001 - of the user's; its text may hold a secret
        raise ConfigError(f"oauth_cb: {name} raised {type(error).__name__} instead of returning {_EXPECTED}") from None
    return _token_of(name, result)


def _import_callable(name: str) -> Callable[[str], Any]:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        raise ConfigError(
            f"oauth_cb: {name} cannot be imported on this machine: install {missing or module_name} where the mirror runs"
        ) from None
    except Exception as error:  # noqa: BLE001 - of the user's; its text may hold a secret
        raise ConfigError(f"oauth_cb: {module_name} raised {type(error).__name__} while it was imported: correct it") from None
    source: Callable[[str], Any] | None = getattr(module, attribute, None)
    if callable(source):
        return source
    functions = [function_name for function_name, value in vars(module).items() if callable(value)]
    near = difflib.get_close_matches(attribute, functions, n=1)
    remedy = f"did you mean {near[0]}?" if near else "correct its name"
    raise ConfigError(f"oauth_cb: {module_name} has no function {attribute}: {remedy}")


def _callable_error(name: str, error: OSError) -> MirrorError:
    status = _status_of(error)
    problem = f"oauth_cb: {name} raised {type(error).__name__}"
    if status is None:
        return RetriableError(CALLBACK_FAILED, problem)
    if may_pass(status):
        return RetriableError(CALLBACK_FAILED, f"{problem} ({status})")
    return ConfigError(f"{problem} ({status}): correct the callable, or sasl.oauthbearer.config")


def _status_of(error: OSError) -> int | None:
    """Return the HTTP status of an error of urllib or requests, None for others."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _token_of(name: str, result: object) -> Token:
    if isinstance(result, tuple | list) and 2 <= len(result) <= 4:
        value, expires_at_s = result[:2]
        more = result[3] if len(result) == 4 else {}
        if isinstance(value, str) and isinstance(expires_at_s, SupportsFloat) and isinstance(more, Mapping):
            return Token(value, float(expires_at_s), dict(more))
    raise ConfigError(f"oauth_cb: {name} returned {_type_names(result)} instead of {_EXPECTED}")


def _type_names(value: object) -> str:
    """Return the type of a value, without its content, which may be a secret."""
    if isinstance(value, tuple | list):
        return f"({', '.join(_type_names(item) for item in value)})"
    return "None" if value is None else type(value).__name__
