"""What a broker takes of small batches at the most: raw batches from one process per producer, without Spark, source and map.

    python -m benchmarks.broker_limit --corpora lz4-small --gb 0.6 --producers 1,2,4 --connections 1,2

Each producer is a process with a transaction, and sends batches of a corpus to all partitions as the slot of a mirror does, over
one or several connections at once. MB/s and CPU are of the time from the first to the last request; the CPU of the broker is
that of its whole process. A mirror cannot be faster than these producers on the same cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.comparison import running_clusters
from benchmarks.corpora import PARTITIONS, Corpus, chosen_corpora, make_batches
from benchmarks.hot_path import IN_FLIGHT_BYTES, IN_FLIGHT_REQUESTS
from benchmarks.resource_check import require_room
from benchmarks.slot_source import TIMEOUT_MS
from benchmarks.topics import create_topic, delete_topic
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.produce.produce_pipeline import ProducePipeline
from shallow_mirror.broker.produce.transactions import add_partitions, end_txn, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import SlotTxn, TopicPartition
from shallow_mirror.wire.batches.crc import crc32c
from shallow_mirror.wire.batches.header import HEADER_DTYPE

_ROUND_BATCHES = 1_000
"""A producer submits so many batches of each partition at a time, about a response of a Fetch."""
