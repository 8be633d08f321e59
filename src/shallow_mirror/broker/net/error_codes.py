"""Everywhere: Kafka's error codes, their names, and what to do about each."""

from __future__ import annotations

import enum


class ErrorClass(enum.Enum):
    RETRIABLE = "ask again, after looking for the leader or coordinator"
    FENCED = "the transaction or its epoch is over: abort and initialise again"
    DEFINITE = "does not change until an operator acts"
    UNKNOWN = "the effect may have happened"


LOG_ENDS_EARLY = "LOG_ENDS_EARLY"
"""A name of ours: the log ends below the end of the range that is read of it."""

EMPTY_FETCH = "EMPTY_FETCH"
"""A name of ours: a range that is neither read nor proved empty."""

RUN_SUPERSEDED = "RUN_SUPERSEDED"
"""A name of ours: another run of the mirror has taken the guard (`sinks/kafka/protocol/run_guard.py`)."""

PRODUCER_FORGOTTEN = "PRODUCER_FORGOTTEN"
"""A name of ours: a log that waits until no request of an earlier writer can be on its way
(`sinks/kafka/preserved/log_guard.py`)."""

UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
TOPIC_AUTHORIZATION_FAILED = 29
CLUSTER_AUTHORIZATION_FAILED = 31
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
SECURITY_DISABLED = 54
OPERATION_NOT_ATTEMPTED = 55
GROUP_ID_NOT_FOUND = 69
PRODUCER_FENCED = 90
UNKNOWN_TOPIC_ID = 100
INCONSISTENT_TOPIC_ID = 103
TRANSACTIONAL_ID_NOT_FOUND = 105

_R, _F, _D, _U = ErrorClass.RETRIABLE, ErrorClass.FENCED, ErrorClass.DEFINITE, ErrorClass.UNKNOWN

_TABLE: dict[int, tuple[str, ErrorClass]] = {
    -1: ("UNKNOWN_SERVER_ERROR", _D),
    1: ("OFFSET_OUT_OF_RANGE", _D),
    2: ("CORRUPT_MESSAGE", _D),
    3: ("UNKNOWN_TOPIC_OR_PARTITION", _R),
    5: ("LEADER_NOT_AVAILABLE", _R),
    6: ("NOT_LEADER_OR_FOLLOWER", _R),
    7: ("REQUEST_TIMED_OUT", _U),
    9: ("REPLICA_NOT_AVAILABLE", _R),
    10: ("MESSAGE_TOO_LARGE", _D),
    12: ("OFFSET_METADATA_TOO_LARGE", _D),
    13: ("NETWORK_EXCEPTION", _U),
    14: ("COORDINATOR_LOAD_IN_PROGRESS", _R),
    15: ("COORDINATOR_NOT_AVAILABLE", _R),
    16: ("NOT_COORDINATOR", _R),
    17: ("INVALID_TOPIC_EXCEPTION", _D),
    18: ("RECORD_LIST_TOO_LARGE", _D),
    19: ("NOT_ENOUGH_REPLICAS", _R),
    20: ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", _U),
    21: ("INVALID_REQUIRED_ACKS", _D),
    22: ("ILLEGAL_GENERATION", _D),
    25: ("UNKNOWN_MEMBER_ID", _D),
    29: ("TOPIC_AUTHORIZATION_FAILED", _D),
    30: ("GROUP_AUTHORIZATION_FAILED", _D),
    31: ("CLUSTER_AUTHORIZATION_FAILED", _D),
    32: ("INVALID_TIMESTAMP", _D),
    33: ("UNSUPPORTED_SASL_MECHANISM", _D),
    34: ("ILLEGAL_SASL_STATE", _D),
    35: ("UNSUPPORTED_VERSION", _D),
    36: ("TOPIC_ALREADY_EXISTS", _D),
    37: ("INVALID_PARTITIONS", _D),
    38: ("INVALID_REPLICATION_FACTOR", _D),
    39: ("INVALID_REPLICA_ASSIGNMENT", _D),
    40: ("INVALID_CONFIG", _D),
    41: ("NOT_CONTROLLER", _R),
    42: ("INVALID_REQUEST", _D),
    43: ("UNSUPPORTED_FOR_MESSAGE_FORMAT", _D),
    44: ("POLICY_VIOLATION", _D),
    45: ("OUT_OF_ORDER_SEQUENCE_NUMBER", _F),
    47: ("INVALID_PRODUCER_EPOCH", _F),
    48: ("INVALID_TXN_STATE", _F),
    49: ("INVALID_PRODUCER_ID_MAPPING", _F),
    50: ("INVALID_TRANSACTION_TIMEOUT", _D),
    51: ("CONCURRENT_TRANSACTIONS", _R),
    52: ("TRANSACTION_COORDINATOR_FENCED", _R),
    53: ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _D),
    54: ("SECURITY_DISABLED", _D),
    55: ("OPERATION_NOT_ATTEMPTED", _R),
    56: ("KAFKA_STORAGE_ERROR", _R),
    58: ("SASL_AUTHENTICATION_FAILED", _D),
    59: ("UNKNOWN_PRODUCER_ID", _F),
    60: ("REASSIGNMENT_IN_PROGRESS", _D),
    68: ("NON_EMPTY_GROUP", _D),
    69: ("GROUP_ID_NOT_FOUND", _D),
    72: ("LISTENER_NOT_FOUND", _R),
    73: ("TOPIC_DELETION_DISABLED", _D),
    74: ("FENCED_LEADER_EPOCH", _R),
    75: ("UNKNOWN_LEADER_EPOCH", _R),
    76: ("UNSUPPORTED_COMPRESSION_TYPE", _D),
    78: ("OFFSET_NOT_AVAILABLE", _R),
    82: ("FENCED_INSTANCE_ID", _D),
    87: ("INVALID_RECORD", _D),
    88: ("UNSTABLE_OFFSET_COMMIT", _R),
    89: ("THROTTLING_QUOTA_EXCEEDED", _R),
    90: ("PRODUCER_FENCED", _F),
    100: ("UNKNOWN_TOPIC_ID", _R),
    103: ("INCONSISTENT_TOPIC_ID", _R),
    120: ("TRANSACTION_ABORTABLE", _F),
}


_OF_MISSING_TOPICS = (UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID)


def error_name(code: int) -> str:
    return _TABLE[code][0] if code in _TABLE else f"error {code}"


def may_be_missing(name: str) -> bool:
    """Return whether an error of this name may be of a topic that does not exist any more."""
    return name in {_TABLE[code][0] for code in _OF_MISSING_TOPICS}


_RESOURCES = {29: "topic", 30: "group", 31: "the cluster", 53: "transactional id"}
"""What the authorization of each code is about."""

_RIGHTS: dict[str, dict[int, str]] = {
    "Metadata": {29: "Describe"},
    "ListOffsets": {29: "Describe"},
    "OffsetForLeaderEpoch": {29: "Describe"},
    "Fetch": {29: "Read"},
    "DescribeProducers": {29: "Read"},
    "DescribeConfigs": {29: "DescribeConfigs", 31: "DescribeConfigs"},
    "FindCoordinator": {30: "Read", 53: "Write"},
    "InitProducerId": {31: "IdempotentWrite", 53: "Write"},
    "AddPartitionsToTxn": {29: "Write", 53: "Write"},
    "AddOffsetsToTxn": {30: "Read", 53: "Write"},
    "TxnOffsetCommit": {29: "Read", 30: "Read", 53: "Write"},
    "Produce": {29: "Write", 31: "IdempotentWrite", 53: "Write"},
    "EndTxn": {53: "Write"},
    "Heartbeat": {30: "Read"},
    "OffsetFetch": {29: "Read", 30: "Read"},
    "DescribeTransactions": {29: "Describe", 53: "Write"},
    "WriteTxnMarkers": {31: "ClusterAction"},
    "CreateTopics": {29: "Create", 31: "Create"},
    "CreatePartitions": {29: "Alter"},
    "IncrementalAlterConfigs": {29: "AlterConfigs"},
    "DeleteTopics": {29: "Delete"},
    "DeleteRecords": {29: "Delete"},
    "DeleteGroups": {30: "Delete"},
    "DescribeGroups": {30: "Describe"},
}
"""What to grant, by API and code (docs/reference/acls.md): where an authorizer wants Describe of a thing that the mirror
reads or writes a moment later, Read or Write, which include it."""


def is_forbidden(code: int) -> bool:
    """Return whether an ACL is missing."""
    return code in _RESOURCES


def refusal(code: int, api: str, *, topic: str = "", key: str = "") -> str:
    """Describe a definite error: its name and the missing ACL, if any. `key`: the transactional id or group."""
    if not is_forbidden(code):
        return error_name(code)
    name = topic if code == 29 else key
    right = _RIGHTS.get(api, {}).get(code, f"what {api} needs")
    return f"{error_name(code)}: grant {right} on {' '.join(filter(None, (_RESOURCES[code], name)))}"


def error_class(code: int) -> ErrorClass:
    """Return the class of a code. Unlisted codes are definite: better to stop than to repeat an unknown error."""
    return _TABLE[code][1] if code in _TABLE else ErrorClass.DEFINITE
