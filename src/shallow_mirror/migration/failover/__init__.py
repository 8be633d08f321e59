"""Failing over to the target of a mirror whose source is gone, and back once it has returned. Driver; starts no JVM."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.migration.failover import view as view
    from shallow_mirror.migration.failover.session import (
        abort_failover as abort_failover,
        fail_back as fail_back,
        fail_over as fail_over,
        plan_failover as plan_failover,
        read_failover as read_failover,
        read_newest_failover as read_newest_failover,
    )
    from shallow_mirror.migration.failover.state import FailoverState as FailoverState
    from shallow_mirror.migration.failover.steps import Step as Step, Way as Way
    from shallow_mirror.migration.failover.view import Printed as Printed
else:
    __getattr__, __dir__ = lazy_names(__name__)
