"""Planning, the Spark data sources and the running mirror."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if __name__ != "shallow_mirror.streaming":
    raise ImportError("import shallow_mirror.streaming, not streaming: the folder is part of the shallow_mirror package")

if TYPE_CHECKING:
    from shallow_mirror.streaming.sources.catalog_archive import kafka_archive_options as kafka_archive_options
    from shallow_mirror.streaming.sources.kafka_archive import register_kafka_archive as register_kafka_archive
    from shallow_mirror.streaming.sources.kafka_batches import register_kafka_batches as register_kafka_batches
    from shallow_mirror.streaming.spark.spark_session import (
        local_session as local_session,
        session_for_places as session_for_places,
        session_for_tables as session_for_tables,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
