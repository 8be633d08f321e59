"""Proof of copy: `verify` reads both clusters through the offset map and says everything that differs."""

from __future__ import annotations

from shallow_mirror.audit.differences import Difference, DifferenceKind
from shallow_mirror.audit.judgement import Unchecked
from shallow_mirror.audit.report import Report
from shallow_mirror.audit.run import AuditProgress, verify

__all__ = ["AuditProgress", "Difference", "DifferenceKind", "Report", "Unchecked", "verify"]
