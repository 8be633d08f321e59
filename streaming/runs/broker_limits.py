"""Driver: settings of the target's brokers with which nothing could be committed, reported before Spark is started."""

from __future__ import annotations

import logging

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce import receipt_limit_problem
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError

_ANSWER_MS = 2_000.0

_log = logging.getLogger(__name__)


def require_room_for_receipts(target: Cluster, cluster_name: str, deadline: Deadline) -> None:
    """Raise ConfigError if a broker's limit of metadata is too small for receipts: no transaction could be committed.

    A broker that does not answer soon, or not permit to read its settings, is not judged: the write says it then. Raises
    RetriableError if the cluster does not answer at all.
    """
    problems: list[str] = []
    for node_id in sorted(target.metadata([], deadline).brokers):
        try:
            settings = target.broker_configs(node_id, deadline.sooner(_ANSWER_MS))
        except (ConfigError, RetriableError) as error:
            _log.info("the settings of broker %d of the %s are not known: %s", node_id, cluster_name, error)
            continue
        problem = receipt_limit_problem(settings)
        if problem is not None:
            problems.append(f"{cluster_name}, broker {node_id}: {problem}")
    if problems:
        raise ConfigError(problems)
