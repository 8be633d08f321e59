"""Byte streams and framed requests to one broker."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.net.begun_call import BEGUN as BEGUN, BegunCall as BegunCall
    from shallow_mirror.broker.net.connection import ReceiveBuffer as ReceiveBuffer
    from shallow_mirror.broker.net.error_codes import (
        EMPTY_FETCH as EMPTY_FETCH,
        INVALID_TXN_STATE as INVALID_TXN_STATE,
        LOG_ENDS_EARLY as LOG_ENDS_EARLY,
        PRODUCER_FORGOTTEN as PRODUCER_FORGOTTEN,
        RUN_SUPERSEDED as RUN_SUPERSEDED,
        TOPIC_AUTHORIZATION_FAILED as TOPIC_AUTHORIZATION_FAILED,
        UNKNOWN_TOPIC_OR_PARTITION as UNKNOWN_TOPIC_OR_PARTITION,
        ErrorClass as ErrorClass,
        error_class as error_class,
        error_name as error_name,
        is_forbidden as is_forbidden,
        may_be_missing as may_be_missing,
        refusal as refusal,
    )
    from shallow_mirror.broker.net.transport import Transport as Transport
else:
    __getattr__, __dir__ = lazy_names(__name__)
