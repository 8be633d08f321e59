"""Real brokers from jars, alone or several in a cluster, for demo, tests, benchmarks and trying by hand."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.local_kafka.command import run_local_kafka as run_local_kafka
    from shallow_mirror.local_kafka.jars import cache_folder as cache_folder, delta_jars as delta_jars
    from shallow_mirror.local_kafka.node import start_clusters as start_clusters, stop_clusters as stop_clusters
else:
    __getattr__, __dir__ = lazy_names(__name__)
