"""Schemas of a Schema Registry with the Confluent API, and those that the registry of the target lacks."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.schemas import view as view
    from shallow_mirror.schemas.copy import copy_schemas as copy_schemas
    from shallow_mirror.schemas.registry import open_registries as open_registries
    from shallow_mirror.schemas.subject_versions import DEFAULT_CONTEXT as DEFAULT_CONTEXT, Schema as Schema, SchemaId as SchemaId
    from shallow_mirror.schemas.sync import schema_sync as schema_sync
else:
    __getattr__, __dir__ = lazy_names(__name__)
