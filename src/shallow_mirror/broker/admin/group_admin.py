"""Driver: deletion of consumer groups."""

from __future__ import annotations

from collections.abc import Sequence

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.net.error_codes import GROUP_ID_NOT_FOUND, error_name, is_forbidden, refusal
from shallow_mirror.broker.produce.txn.coordinator_requests import ask_coordinator
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError


def delete_groups(cluster: Cluster, names: Sequence[str], deadline: Deadline) -> None:
    """Delete groups without members; those that do not exist are passed over.

    Raises ConfigError with every refusal, RetriableError if the cluster does not answer, or a group has members still.
    """
    problems: list[str] = []
    for name in names:
        try:
            response = ask_coordinator(
                cluster,
                CoordinatorKind.GROUP,
                name,
                "DeleteGroups",
                lambda response: int(response.results[0].error_code),
                deadline,
                groups_names=[name],
            )
        except RetriableError as error:
            raise RetriableError(error.error_name, f"group {name} was not deleted: {error.detail}") from error
        code = int(response.results[0].error_code)
        if code in (0, GROUP_ID_NOT_FOUND):
            continue
        if not is_forbidden(code):
            raise RetriableError(error_name(code), f"group {name} was not deleted")
        problems.append(f"group {name} cannot be deleted: {refusal(code, 'DeleteGroups', key=name)}")
    if problems:
        raise ConfigError(problems)
