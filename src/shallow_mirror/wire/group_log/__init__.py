"""Records of `__consumer_offsets`: committed offsets of consumer groups as their coordinators log them."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.wire.group_log.commit_columns import (
        CommitColumns as CommitColumns,
        CommitRow as CommitRow,
        read_commits as read_commits,
    )
    from shallow_mirror.wire.group_log.offset_commits import (
        CommitKey as CommitKey,
        CommitValue as CommitValue,
        UnknownCommitError as UnknownCommitError,
        key_type as key_type,
        parse_commit_key as parse_commit_key,
        parse_commit_value as parse_commit_value,
        parse_committed_offset as parse_committed_offset,
    )
    from shallow_mirror.wire.group_log.record_fields import LoggedRecord as LoggedRecord, logged_records as logged_records
else:
    __getattr__, __dir__ = lazy_names(__name__)
