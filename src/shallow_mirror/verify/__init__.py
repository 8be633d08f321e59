"""Proof of copy: `verify` reads both clusters through the offset map and says everything that differs."""

from __future__ import annotations

from shallow_mirror.verify.classify import Unchecked
from shallow_mirror.verify.differences import Difference, DifferenceKind
from shallow_mirror.verify.progress import VerifyProgress
from shallow_mirror.verify.report import VerifyReport
from shallow_mirror.verify.runner import verify_mirror, verify_restore

__all__ = ["Difference", "DifferenceKind", "Unchecked", "VerifyProgress", "VerifyReport", "verify_mirror", "verify_restore"]
