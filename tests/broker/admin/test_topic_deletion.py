"""A topic is deleted by its id: one that has its name by now stays."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from tests.support.deadlines import deadline
from tests.support.mirror_runs import create_topic

from shallow_mirror.broker import Cluster, delete_topic_by_id
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION
from shallow_mirror.local_kafka.node import LocalKafka

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.brokers
def test_brokers_delete_the_topic_with_this_id_and_no_other(target_cluster: LocalKafka, topic_name: str) -> None:
    create_topic(target_cluster.bootstrap, topic_name)
    properties = {"bootstrap.servers": target_cluster.bootstrap}
    with closing(Cluster(ClientConfig.from_properties(properties))) as cluster:
        topic_id = cluster.metadata([topic_name], deadline(30_000)).topics[topic_name].topic_id
        delete_topic_by_id(cluster, topic_name, OTHER_ID, deadline(30_000))
        assert cluster.metadata([topic_name], deadline(30_000)).topics[topic_name].topic_id == topic_id
        delete_topic_by_id(cluster, topic_name, topic_id, deadline(30_000))
        until = deadline(30_000)
        while not cluster.metadata([topic_name], deadline(30_000)).topics[topic_name].error_code:
            until.require("the topic to be gone")
            time.sleep(0.05)
        assert cluster.metadata([topic_name], deadline(30_000)).topics[topic_name].error_code == UNKNOWN_TOPIC_OR_PARTITION
