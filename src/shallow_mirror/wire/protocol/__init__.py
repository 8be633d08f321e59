"""Requests and responses of brokers, and SCRAM messages, as bytes."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.wire.protocol import fetch as fetch, group_offsets as group_offsets, list_offsets as list_offsets
    from shallow_mirror.wire.protocol.fetch import (
        NO_REPLICA as NO_REPLICA,
        FetchedPartition as FetchedPartition,
        FetchPartition as FetchPartition,
        FetchResponse as FetchResponse,
        TopicNames as TopicNames,
        build_fetch_request as build_fetch_request,
        parse_fetch_response as parse_fetch_response,
        topic_names as topic_names,
    )
    from shallow_mirror.wire.protocol.leader_fetch import (
        build_leader_fetch_request as build_leader_fetch_request,
        parse_leader_fetch_response as parse_leader_fetch_response,
    )
    from shallow_mirror.wire.protocol.primitives import WireError as WireError
    from shallow_mirror.wire.protocol.produce import (
        ProduceFrames as ProduceFrames,
        RawBatch as RawBatch,
        SplitBatch as SplitBatch,
        parse_produce_response as parse_produce_response,
    )
    from shallow_mirror.wire.protocol.scram import ScramClient as ScramClient, ScramError as ScramError
else:
    __getattr__, __dir__ = lazy_names(__name__)
