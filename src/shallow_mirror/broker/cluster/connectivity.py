"""Driver: the first request of a command: bounded in time, with errors that name the cluster and what to check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shallow_mirror.broker.auth.kerberos import KDC_UNREACHABLE
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import ClusterMetadata
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import AuthenticationError, BrokerTooOldError, NotABrokerError, RetriableError

REACH_MS = 10_000

_BROKERS = "check its bootstrap.servers and security.protocol, and whether its brokers run and can be reached from here"
_KDC = "check the KDCs of its realm in krb5.conf, and whether they run and can be reached from here"
_WITHOUT_TOKEN = {
    "TOKEN_ENDPOINT_UNREACHABLE": "check sasl.oauthbearer.token.endpoint.url, and whether that endpoint runs and is reachable",
    "TOKEN_PROVIDER_UNREACHABLE": "check whether the token and metadata services of the cloud can be reached from here",
    "OAUTH_CB_FAILED": "check the service that oauth_cb requests tokens from, and whether it can be reached from here",
}


def reach(cluster: Cluster, where: str, deadline: Deadline) -> ClusterMetadata:
    """Return brokers and id of a cluster. `where` as in "source cluster east".

    Raises RetriableError within REACH_MS, ConfigError.
    """
    try:
        with named_cluster(where):
            return cluster.metadata([], deadline.sooner(REACH_MS))
    except RetriableError as error:
        problem, remedy = _problem_and_remedy(error.error_name)
        raise RetriableError(error.error_name, f"the {where} {problem}: {error.detail}: {remedy}") from error


@contextmanager
def named_cluster(where: str) -> Iterator[None]:
    """Name the cluster in the error of a broker or controller, which knows its own address only."""
    try:
        yield
    except (AuthenticationError, BrokerTooOldError, NotABrokerError) as error:
        raise type(error)([f"{where}: {problem}" for problem in error.problems]) from error


def _problem_and_remedy(error_name: str) -> tuple[str, str]:
    """Return the problem, and the checks to make."""
    if error_name == KDC_UNREACHABLE:
        return "requires a Kerberos ticket, and none could be obtained", _KDC
    if error_name in _WITHOUT_TOKEN:
        return "requires a token, and none could be obtained", _WITHOUT_TOKEN[error_name]
    return "does not answer", _BROKERS
