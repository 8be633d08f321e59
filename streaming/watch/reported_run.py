"""Driver: identity of the mirror, archive or restore that runs, for its reporter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shallow_mirror.config import ArchiveConfig, MetricsSettings, MirrorConfig, RestoreConfig
from shallow_mirror.config.archive_config import ROUND_TIMEOUT_MS
from shallow_mirror.streaming.watch.health import HealthLimits

if TYPE_CHECKING:
    from shallow_mirror.streaming.watch.lag_monitor import ClusterObserver, LagMonitor


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """Names and settings of the run.

    `source` and `target` are names for metrics. `commit_interval`: as it is configured. `open_lag_monitor`: None if none runs.
    """

    name: str
    source: str
    target: str
    checkpoint: str
    commit_interval: str
    metrics: MetricsSettings
    health_limits: HealthLimits
    open_lag_monitor: Callable[[ClusterObserver], LagMonitor] | None = None

    @classmethod
    def of_mirror(cls, config: MirrorConfig) -> ReportedRun:
        def open_lag_monitor(clusters: ClusterObserver) -> LagMonitor:
            from shallow_mirror.streaming.watch.lag_monitor import LagMonitor

            return LagMonitor(config, clusters)

        return cls(
            name=config.mirror,
            source=config.source.alias,
            target=config.target.alias,
            checkpoint=config.checkpoint,
            commit_interval=config.write.commit_interval,
            metrics=config.metrics,
            health_limits=HealthLimits.of_run(
                trigger_s=config.trigger_s,
                commit_interval_s=config.write.commit_interval_s,
                round_timeout_ms=config.write.transaction_timeout_ms,
            ),
            open_lag_monitor=open_lag_monitor,
        )

    @classmethod
    def of_archive(cls, config: ArchiveConfig) -> ReportedRun:
        return cls(
            name=config.archive,
            source=config.source.alias,
            target="archive",
            checkpoint=config.checkpoint,
            commit_interval=config.trigger,
            metrics=config.metrics,
            health_limits=HealthLimits.of_run(
                trigger_s=config.trigger_s,
                commit_interval_s=config.most_writing_ms / 1000,
                round_timeout_ms=ROUND_TIMEOUT_MS,
            ),
        )

    @classmethod
    def of_restore(cls, config: RestoreConfig) -> ReportedRun:
        return cls(
            name=config.restore,
            source="archive",
            target=config.target.alias,
            checkpoint=config.checkpoint,
            commit_interval=config.write.commit_interval,
            metrics=config.metrics,
            health_limits=HealthLimits.of_run(
                trigger_s=0.0,
                commit_interval_s=config.write.commit_interval_s,
                round_timeout_ms=config.write.transaction_timeout_ms,
            ),
        )
