"""Preflight of a mirror: looks at both clusters, reads headers of batches, and changes nothing."""

from __future__ import annotations

from shallow_mirror.preflight.report import PreflightReport, TopicReport
from shallow_mirror.preflight.run import DEFAULT_SAMPLE_BYTES, preflight_mirror, start_problems
from shallow_mirror.preflight.sampling import PreflightProgress

__all__ = ["DEFAULT_SAMPLE_BYTES", "PreflightProgress", "PreflightReport", "TopicReport", "preflight_mirror", "start_problems"]
