"""A Python loop over confluent-kafka (librdkafka): benchmarks/programs/confluent_copy.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.peer import Job, Peer, started

PROGRAM = Path(__file__).parent.parent / "programs" / "confluent_copy.py"


class ConfluentLoop(Peer):
    name = "confluent-kafka"

    def launch(self, job: Job) -> subprocess.Popen[bytes]:
        return started(job, [sys.executable, str(PROGRAM), job.as_json()])
