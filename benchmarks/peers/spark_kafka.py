"""Spark's own Kafka source and sink: benchmarks/programs/spark_copy.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.peer import Job, Peer, started
from shallow_mirror.local_kafka.jars import SPARK_KAFKA_JAR_SET, jars_of

PROGRAM = Path(__file__).parent.parent / "programs" / "spark_copy.py"


class SparkKafka(Peer):
    name = "spark-kafka"

    def prepare(self) -> None:
        jars_of(SPARK_KAFKA_JAR_SET)

    def launch(self, job: Job) -> subprocess.Popen[bytes]:
        jars = ",".join(str(jar) for jar in jars_of(SPARK_KAFKA_JAR_SET))
        return started(job, [sys.executable, str(PROGRAM), job.as_json(jars=jars, folder=str(job.folder))])
