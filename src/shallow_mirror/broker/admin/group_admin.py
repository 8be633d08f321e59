"""Driver: deletion of consumer groups through confluent-kafka."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.net.error_codes import is_forbidden, refusal
from shallow_mirror.errors import ConfigError, RetriableError

_GROUP_ID_NOT_FOUND = 69


def delete_groups(client: ClientConfig, names: Sequence[str], *, timeout_s: float) -> None:
    """Delete groups without members; those that do not exist are passed over.

    Raises ConfigError with every refusal, RetriableError where the cluster does not answer, or a group has members still.
    """
    if not names:
        return
    admin, problems = AdminClient({**client.as_confluent(), "log_level": "0"}), []
    for name, future in admin.delete_consumer_groups(list(names), request_timeout=timeout_s).items():
        try:
            future.result(timeout_s + 1)
        except KafkaException as error:
            failure = error.args[0]
            if failure.code() == _GROUP_ID_NOT_FOUND:
                continue
            if not is_forbidden(failure.code()):
                raise RetriableError(failure.name(), f"group {name} was not deleted: {failure.str()}") from error
            problems.append(f"group {name} cannot be deleted: {refusal(failure.code(), 'DeleteGroups', key=name)}")
        except TimeoutError as error:  # the client itself is late
            raise RetriableError("REQUEST_TIMED_OUT", f"group {name} was not deleted within {timeout_s:.0f} s") from error
    if problems:
        raise ConfigError(problems)
