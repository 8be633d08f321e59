"""Everywhere: tokens of Amazon MSK: a presigned request, made by Amazon's signer from the credentials of this machine."""

from __future__ import annotations

from typing import Any

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth_properties import CONFIG, msk_region, parse_options
from shallow_mirror.broker.auth.tokens.credentials import missing_credentials, missing_library, refused, unreachable
from shallow_mirror.broker.auth.tokens.refusals import may_pass
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.errors import MirrorError

_METHOD = "aws_msk_iam"
_STS_TIMEOUT_S = 5
_SESSION_NAME = "shallow-mirror"
_PASSING = {"Throttling", "ThrottlingException", "RequestLimitExceeded", "IDPCommunicationError", "InternalFailure"}
_FIND = (
    "attach a role to the machine or the service account, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    f"profile=NAME in {CONFIG}"
)


def token_of_msk(config: ClientConfig, session: Any = None) -> Token:
    """Return a token, which is valid for 15 minutes.

    `session`: of botocore, with credentials; None: botocore's chain of credentials.
    """
    try:
        import botocore.exceptions
        import botocore.parsers
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        from botocore.credentials import CredentialProvider
    except ImportError:
        raise missing_library(_METHOD, "aws-msk-iam-sasl-signer-python", "msk") from None
    options = parse_options(config.value(CONFIG))
    region = options.get("region") or msk_region(config.value("bootstrap.servers"))

    class Found(CredentialProvider):  # type: ignore[misc]
        def load(self) -> Any:
            return _credentials(options, region, session)

    try:
        token, expires_at_ms = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider(region, Found())
    except botocore.exceptions.ClientError as error:
        raise _refusal(error, options) from None
    except (
        botocore.exceptions.ConnectionError,
        botocore.exceptions.HTTPClientError,
        botocore.parsers.ResponseParserError,
    ) as error:
        raise unreachable(_METHOD, f"a service of AWS cannot be reached ({type(error).__name__})") from None
    except botocore.exceptions.ProfileNotFound:
        raise refused(_METHOD, "there is no such profile", f"correct profile=NAME in {CONFIG}") from None
    except botocore.exceptions.BotoCoreError as error:
        raise missing_credentials(_METHOD, f"{_FIND} ({type(error).__name__})") from None
    return Token(token, expires_at_ms / 1000)


def _credentials(options: dict[str, str], region: str, session: Any) -> Any:
    from botocore.config import Config
    from botocore.credentials import ReadOnlyCredentials
    from botocore.session import Session

    session = session or Session(profile=options.get("profile"))
    found = session.get_credentials()
    if found is None:
        raise missing_credentials(_METHOD, _FIND)
    if "role.arn" not in options:
        return found.get_frozen_credentials()
    limits = Config(connect_timeout=_STS_TIMEOUT_S, read_timeout=_STS_TIMEOUT_S, retries={"total_max_attempts": 1})
    # The endpoint of the region: the global one is in us-east-1 only.
    sts = session.create_client("sts", region_name=region, config=limits)
    name = options.get("role.session.name", _SESSION_NAME)
    given = sts.assume_role(RoleArn=options["role.arn"], RoleSessionName=name)["Credentials"]
    return ReadOnlyCredentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])


def _refusal(error: Any, options: dict[str, str]) -> MirrorError:
    code = str(error.response.get("Error", {}).get("Code", "unknown"))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _PASSING or may_pass(status):
        return unreachable(_METHOD, f"{error.operation_name} answered {code}")
    remedy = f"let its trust policy name these credentials, or correct role.arn in {CONFIG}" if "role.arn" in options else _FIND
    return refused(_METHOD, f"{error.operation_name}: {status} {code}", remedy)
