"""Writers of slots: the Kafka transaction of a task, and batches with preserved offsets."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.kafka.writers.kafka_slot_job import KafkaSlotJob as KafkaSlotJob, target_ends_of as target_ends_of
    from shallow_mirror.sinks.kafka.writers.preserved_writer import PreservedWriter as PreservedWriter
    from shallow_mirror.sinks.kafka.writers.slot_target import KafkaSlotTarget as KafkaSlotTarget
else:
    __getattr__, __dir__ = lazy_names(__name__)
