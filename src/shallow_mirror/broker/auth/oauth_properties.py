"""Everywhere: names and rules of the properties of OAUTHBEARER: librdkafka's as of 2.16, and a few of our own. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

PREFIX = "sasl.oauthbearer."
CLIENT_CREDENTIALS = "client_credentials"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ALGORITHMS = ("RS256", "ES256")

METHOD = PREFIX + "method"
URL = PREFIX + "token.endpoint.url"
CONFIG = PREFIX + "config"
GRANT_TYPE = PREFIX + "grant.type"
CLIENT_AUTHENTICATION = PREFIX + "client.authentication.method"
METADATA = PREFIX + "metadata.authentication.type"
_CLIENT_ID, _CLIENT_SECRET = PREFIX + "client.id", PREFIX + "client.secret"
_SCOPE, _AUDIENCE, _SUB = PREFIX + "scope", PREFIX + "audience", PREFIX + "sub.claim.name"
_EXTENSIONS, _CALLBACK = PREFIX + "extensions", "oauth_cb"
_HTTPS = ("https.ca.location", "https.ca.pem")

_ASSERTION = PREFIX + "assertion."
KEY_FILE, KEY_PEM = _ASSERTION + "private.key.file", _ASSERTION + "private.key.pem"
ASSERTION_FILE = _ASSERTION + "file"
_ASSERTIONS = (
    ASSERTION_FILE,
    KEY_FILE,
    KEY_PEM,
    _ASSERTION + "private.key.passphrase",
    _ASSERTION + "algorithm",
    _ASSERTION + "jwt.template.file",
    _ASSERTION + "claim.aud",
    _ASSERTION + "claim.exp.seconds",
    _ASSERTION + "claim.iss",
    _ASSERTION + "claim.jti.include",
    _ASSERTION + "claim.nbf.seconds",
    _ASSERTION + "claim.sub",
)

OAUTH = (
    METHOD,
    URL,
    _CLIENT_ID,
    _CLIENT_SECRET,
    CLIENT_AUTHENTICATION,  # ours, with the values of OpenID Connect
    GRANT_TYPE,
    *_ASSERTIONS,
    METADATA,
    _SCOPE,
    _AUDIENCE,  # ours
    _SUB,
    _EXTENSIONS,
    CONFIG,
    _CALLBACK,
    *_HTTPS,
)
OAUTH_SECRET = (_CLIENT_SECRET, CONFIG, KEY_PEM, _ASSERTION + "private.key.passphrase")
OAUTH_ALIASES = {
    PREFIX + "client.credentials.client.id": _CLIENT_ID,
    PREFIX + "client.credentials.client.secret": _CLIENT_SECRET,
}

METHODS = ("default", "oidc", "aws_msk_iam", "azure", "google", "databricks")
CLIENT_AUTHENTICATIONS = ("client_secret_basic", "client_secret_post", "private_key_jwt")
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "aws_msk_iam": ("region", "role.arn", "role.session.name", "profile"),
    "google": ("principal",),
    "databricks": ("credential", "region", "principal"),
    "azure_imds": ("query",),
}
"""What `sasl.oauthbearer.config` may hold, as `name=value` separated by spaces. None of it is a secret."""
_EFFECTIVE: Mapping[str, tuple[str, ...]] = {
    "default": (_CALLBACK, CONFIG),
    "aws_msk_iam": (CONFIG,),
    "azure": (_CLIENT_ID, _SCOPE),
    "google": (CONFIG, _SCOPE),
    "databricks": (CONFIG, _SCOPE),
}


def method_of(given: Mapping[str, str]) -> str:
    """Return the method in lower case; `default` if it is not given."""
    return given.get(METHOD, "").lower() or "default"


def is_jwt_bearer(grant_type: str) -> bool:
    """Return whether a grant type is JWT bearer (RFC 7523)."""
    return grant_type.lower() == JWT_BEARER


def is_file_url(url: str) -> bool:
    """Return whether a token is read from a file, as Java clients do with the same property."""
    return url.startswith("file:")


def has_public_config(given: Mapping[str, str]) -> bool:
    """Return whether `sasl.oauthbearer.config` holds options, and not a text for a callable, which may be a secret."""
    return _options_of_source(given) is not None


def parse_options(text: str) -> dict[str, str]:
    """Parse `name=value name=value`. Values may contain `=`. A word without `=` is a name without a value."""
    return {name: value for name, _, value in (word.partition("=") for word in text.split())}


def oauth_problems(given: Mapping[str, str], bootstrap: str) -> list[str]:
    """Return contradictions and missing properties of OAUTHBEARER. Each begins with the name of a property.

    Secrets are not examined. `bootstrap`: the region of MSK and the scope of Event Hubs may be in its host names.
    """
    method = method_of(given)
    if method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, n=1)
        return [f"{METHOD}: {method!r} is not one of {', '.join(METHODS)}" + (f"; did you mean {near[0]}?" if near else "")]
    if method == "oidc":
        problems, effective = _oidc_problems(given)
    else:
        problems, effective = [], _EFFECTIVE[method]
    problems += [_no_effect(name, given) for name in OAUTH if name in given and name not in (METHOD, _EXTENSIONS, *effective)]
    problems += _option_problems(given)
    if method == "default":
        problems += _callback_problems(given)
    options = parse_options(given.get(CONFIG, "")) if has_public_config(given) else {}
    if method == "aws_msk_iam" and not options.get("region") and not msk_region(bootstrap):
        problems.append(f"{CONFIG}: has no region=REGION, and bootstrap.servers does not name one: add it")
    if method == "azure" and _SCOPE not in given and not event_hubs_scope(bootstrap):
        problems.append(
            f"{_SCOPE}: is missing: it is the application id URI of the Kafka cluster with /.default, "
            "https://NAMESPACE.servicebus.windows.net/.default for Event Hubs"
        )
    if method == "databricks" and not options.get("credential"):
        problems.append(f"{CONFIG}: has no credential=NAME: name a service credential of Unity Catalog")
    return problems


def msk_region(bootstrap: str) -> str:
    """Return the region in the name of a broker of Amazon MSK; empty for other names."""
    match = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", bootstrap)
    return match[1] if match else ""


def event_hubs_scope(bootstrap: str) -> str:
    """Return the scope of an Event Hubs namespace, empty if the name of the broker is none."""
    match = re.search(r"([a-z0-9-]+\.servicebus\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net))", bootstrap.lower())
    return f"https://{match[1]}/.default" if match else ""


def _no_effect(name: str, given: Mapping[str, str]) -> str:
    cause = f"{METHOD}: {method_of(given)}"
    if method_of(given) == "oidc":
        if is_file_url(given.get(URL, "")):
            cause = f"{URL}: file:..."
        elif METADATA in given:
            cause = f"{METADATA}: {given[METADATA]}"
        elif name in _ASSERTIONS:
            return f"{name}: has no effect without {GRANT_TYPE}: {JWT_BEARER} or {CLIENT_AUTHENTICATION}: private_key_jwt"
        elif name == _CLIENT_SECRET:
            cause = f"{CLIENT_AUTHENTICATION}: private_key_jwt"
    return f"{name}: has no effect with {cause}; remove it"


def _callback_problems(given: Mapping[str, str]) -> list[str]:
    if _CALLBACK not in given:
        return [
            f"{_CALLBACK}: is missing: name a callable as module:function, or set {METHOD}: oidc with token endpoint, "
            f"client id and client secret (methods are {', '.join(METHODS[1:])})"
        ]
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", given[_CALLBACK]):
        return [f"{_CALLBACK}: is not module:function"]
    return []


def _options_of_source(given: Mapping[str, str]) -> str | None:
    method = method_of(given)
    source = given.get(METADATA, "").lower() if method == "oidc" else method
    return source if source in _OPTIONS else None


def _option_problems(given: Mapping[str, str]) -> list[str]:
    source = _options_of_source(given)
    if source is None or CONFIG not in given:
        return []
    problems = []
    for name, value in parse_options(given[CONFIG]).items():
        if name not in _OPTIONS[source]:
            near = difflib.get_close_matches(name, _OPTIONS[source], n=1)
            known = f"did you mean {near[0]}?" if near else f"known are {', '.join(_OPTIONS[source])}"
            # A word that does not look like a name may be a secret that belongs elsewhere.
            shown = f" {name}" if re.fullmatch(r"[a-z_.]{1,30}", name) and value else ""
            problems.append(f"{CONFIG}: unknown option{shown} for {source}; {known}")
        elif not value:
            problems.append(f"{CONFIG}: {name} has no value: write {name}=VALUE")
    return problems


def _oidc_problems(given: Mapping[str, str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the problems, and the names that have an effect."""
    if is_file_url(given.get(URL, "")):
        return [], (URL, _SUB)
    problems = [f"{_HTTPS[1]}: is given beside {_HTTPS[0]}: keep one of them"] if all(name in given for name in _HTTPS) else []
    kind = given.get(METADATA, "none").lower()
    if kind == "azure_imds":
        if URL not in given and "query" not in parse_options(given.get(CONFIG, "")):
            problems.append(
                f"{CONFIG}: has no query=QUERY, and {URL} is missing: set "
                "query=api-version=2018-02-01&resource=APPLICATION_ID_URI"
            )
        return problems, (METADATA, URL, CONFIG, _SUB, *_HTTPS)
    if kind == "aws_iam":
        return [f"{METADATA}: aws_iam is not supported; for Amazon MSK set {METHOD}: aws_msk_iam"], OAUTH
    if kind != "none":
        return [f"{METADATA}: {given[METADATA]!r} is not one of none, azure_imds"], OAUTH
    grant_type = given.get(GRANT_TYPE, CLIENT_CREDENTIALS)
    if grant_type.lower() not in (CLIENT_CREDENTIALS, JWT_BEARER):
        return [f"{GRANT_TYPE}: {grant_type!r} is not one of {CLIENT_CREDENTIALS}, {JWT_BEARER}"], OAUTH
    authentication = given.get(CLIENT_AUTHENTICATION, CLIENT_AUTHENTICATIONS[0]).lower()
    if authentication not in CLIENT_AUTHENTICATIONS:
        return [f"{CLIENT_AUTHENTICATION}: {authentication!r} is not one of {', '.join(CLIENT_AUTHENTICATIONS)}"], OAUTH
    effective = [URL, METADATA, GRANT_TYPE, CLIENT_AUTHENTICATION, _CLIENT_ID, _SCOPE, _AUDIENCE, _SUB, *_HTTPS]
    needed = [URL]
    if is_jwt_bearer(grant_type):
        # The client authenticates beside the assertion where its secret is given.
        effective += [_CLIENT_SECRET, *_ASSERTIONS]
        if _CLIENT_SECRET in given:
            needed.append(_CLIENT_ID)
        if authentication == "private_key_jwt":
            problems.append(
                f"{CLIENT_AUTHENTICATION}: private_key_jwt is for {GRANT_TYPE}: {CLIENT_CREDENTIALS}; remove one of them"
            )
        problems += _assertion_problems(given)
    elif authentication == "private_key_jwt":
        effective += _ASSERTIONS
        needed.append(_CLIENT_ID)
        problems += _assertion_problems(given)
    else:
        effective.append(_CLIENT_SECRET)
        needed += [_CLIENT_ID, _CLIENT_SECRET]
    problems += [f"{name}: is missing for {METHOD}: oidc" for name in needed if name not in given]
    if _SUB in given and not given[_SUB].strip():
        problems.append(f"{_SUB}: is empty")
    return problems, tuple(effective)


def _assertion_problems(given: Mapping[str, str]) -> list[str]:
    if ASSERTION_FILE in given:
        return [
            f"{name}: has no effect with {ASSERTION_FILE}, which holds a signed assertion; remove one of them"
            for name in _ASSERTIONS
            if name in given and name != ASSERTION_FILE
        ]
    problems = []
    if KEY_FILE in given and KEY_PEM in given:
        problems.append(f"{KEY_PEM}: is given beside {KEY_FILE}: keep one of them")
    if KEY_FILE not in given and KEY_PEM not in given:
        problems.append(f"{KEY_FILE}: is missing (or {KEY_PEM}, or {ASSERTION_FILE}): an assertion needs its key")
    algorithm = given.get(_ASSERTION + "algorithm", ALGORITHMS[0])
    if algorithm.upper() not in ALGORITHMS:
        problems.append(f"{_ASSERTION}algorithm: {algorithm!r} is not one of {', '.join(ALGORITHMS)}")
    for name, least in (("exp", 1), ("nbf", 0)):
        seconds = given.get(f"{_ASSERTION}claim.{name}.seconds", "1")
        if not (seconds.isdigit() and least <= int(seconds) <= 2_000_000_000):
            problems.append(f"{_ASSERTION}claim.{name}.seconds: {seconds!r} is not a whole number of at least {least}")
    if given.get(_ASSERTION + "claim.jti.include", "true") not in ("true", "false"):
        problems.append(f"{_ASSERTION}claim.jti.include: {given[_ASSERTION + 'claim.jti.include']!r} is neither true nor false")
    return problems
