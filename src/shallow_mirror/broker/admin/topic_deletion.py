"""Driver: deletion of a topic by its id, so that a topic that was created again under the name stays."""

from __future__ import annotations

import base64
import uuid

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.connection_pool import CONTROL
from shallow_mirror.broker.net.error_codes import UNKNOWN_TOPIC_ID, ErrorClass, error_class, error_name, refusal
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError

_NOT_CONTROLLER = 41


def delete_topic_by_id(cluster: Cluster, topic: str, topic_id: str, deadline: Deadline) -> None:
    """Delete the topic with this id; nothing where it is gone already. `topic` is for messages.

    Raises ConfigError where the cluster refuses it, RetriableError, BrokerTooOldError.
    """
    state = request_class("DeleteTopics").DeleteTopicState
    wanted = uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))
    code = _NOT_CONTROLLER
    # With ZooKeeper only the controller deletes; with KRaft every broker forwards the request.
    for node_id in sorted(cluster.metadata([], deadline).brokers):
        attempt = deadline.sooner(cluster.config.request_timeout_ms)
        response = call(
            cluster.connection(node_id, CONTROL, attempt),
            "DeleteTopics",
            attempt,
            topics=[state(name=None, topic_id=wanted)],
            timeout_ms=int(attempt.remaining_ms()),
        )
        code = int(response.responses[0].error_code)
        if code != _NOT_CONTROLLER:
            break
    if code in (0, UNKNOWN_TOPIC_ID):
        return
    if code != _NOT_CONTROLLER and error_class(code) is ErrorClass.DEFINITE:
        raise ConfigError(f"target topic {topic} cannot be deleted: {refusal(code, 'DeleteTopics', topic=topic)}")
    raise RetriableError(error_name(code), f"DeleteTopics of {topic}")
