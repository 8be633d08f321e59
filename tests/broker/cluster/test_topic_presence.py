from __future__ import annotations

import time

from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster.topic_presence import Missing, missing_topics
from shallow_mirror.deadline import Deadline


def test_topics_that_the_cluster_does_not_have_are_gone_and_those_it_does_not_show_are_hidden() -> None:
    with StrictCluster() as fake:
        fake.create_topic("a")
        fake.change_always("Metadata", error(29, ("c", -1)))
        cluster = Cluster(ClientConfig.from_properties({"bootstrap.servers": fake.bootstrap}))
        actual = missing_topics(cluster, ["a", "b", "c"], Deadline.after_ms(5_000, time.monotonic))
        cluster.close()
    assert actual == Missing(("b",), {"c": "TOPIC_AUTHORIZATION_FAILED: grant Read on topic c"})
