"""Two strict registries, the mirror file between them, and schemas to copy."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tests.fakes.registry_server import RegistryServer
from tests.fakes.schema_registry import RegistryRules

from shallow_mirror.checkpoints.logs import SchemaImports
from shallow_mirror.config import MirrorConfig
from shallow_mirror.schemas.copy import SchemaReport, copy_between
from shallow_mirror.schemas.registry import SchemaRegistry

MONEY = '{"type":"record","name":"Money","fields":[{"name":"cents","type":"long"}]}'
ORDER = '{"type":"record","name":"Order","fields":[{"name":"price","type":"Money"}]}'


class Pair:
    """Two registries and the mirror file between them."""

    def __init__(self, source: RegistryServer, target: RegistryServer, folder: Path) -> None:
        self.source, self.target, self.folder = source, target, folder

    def document(self, **schemas: Any) -> dict[str, Any]:
        cluster = {"client": {"bootstrap.servers": "127.0.0.1:1"}}
        return {
            "mirror": "m",
            "source": {"alias": "east", **cluster},
            "target": {"alias": "west", **cluster},
            "topics": {"include": ["orders"]},
            "tables": str(self.folder / "tables"),
            "schemas": {"source": {"url": self.source.url}, "target": {"url": self.target.url}, **schemas},
        }

    def config(self, **schemas: Any) -> MirrorConfig:
        return MirrorConfig.from_document(self.document(**schemas), folder=self.folder)

    def history(self) -> SchemaImports:
        return SchemaImports.open(self.config().table_location, self.target.url)

    def copy(self, *, is_applied: bool = True, history: Any = None, **schemas: Any) -> SchemaReport:
        config = self.config(**schemas)
        source = SchemaRegistry(config.schemas.source, side="source", alias="east", sleep=lambda _: None)
        target = SchemaRegistry(config.schemas.target, side="target", alias="west", sleep=lambda _: None)
        with contextlib.closing(source), contextlib.closing(target):
            return copy_between(source, target, config, history or self.history(), is_applied=is_applied)


def fill(rules: RegistryRules) -> None:
    """Three schemas, one referred to by another, and one deleted; ids with a gap."""
    rules.register("other", {"schema": '"bytes"'})
    rules.register("money", {"schema": MONEY})
    rules.register("orders-value", {"schema": '"string"'})
    rules.register("orders-value-2", {"schema": '"int"'})
    references = [{"name": "Money", "subject": "money", "version": 1}]
    rules.levels["orders-value"] = "NONE"
    rules.register("orders-value", {"schema": ORDER, "references": references})
    rules.delete("orders-value", 1, permanently=False)
    rules.delete("other", 1, permanently=False)
    rules.delete("other", 1, permanently=True)
