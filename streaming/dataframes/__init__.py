"""DataFrames of others, written to Kafka exactly once."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.streaming.dataframes.exactly_once_sink import ExactlyOnceKafkaSink as ExactlyOnceKafkaSink
else:
    __getattr__, __dir__ = lazy_names(__name__)
