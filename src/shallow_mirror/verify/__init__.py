"""Proof of copy: `verify` reads both clusters through the offset map and says everything that differs."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.verify.classify import Unchecked as Unchecked
    from shallow_mirror.verify.clusters import ClusterReader as ClusterReader
    from shallow_mirror.verify.differences import Difference as Difference, DifferenceKind as DifferenceKind
    from shallow_mirror.verify.fingerprints import record_content as record_content
    from shallow_mirror.verify.log_comparison import compare_logs as compare_logs
    from shallow_mirror.verify.progress import (
        OnProgress as OnProgress,
        VerifyProgress as VerifyProgress,
        ignore_progress as ignore_progress,
    )
    from shallow_mirror.verify.report import VerifyReport as VerifyReport
    from shallow_mirror.verify.runner import verify_mirror as verify_mirror, verify_restore as verify_restore
else:
    __getattr__, __dir__ = lazy_names(__name__)
