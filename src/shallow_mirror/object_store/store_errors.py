"""Pure: what deltalake and obstore raise about an object store, as one line: which kind of error it is, and what helps.

deltalake has no error class for an unreachable store: the same outage is an OSError, a DeltaError, or an error of Arrow, by the
file that was asked for; obstore's errors have one class for all outages. So the text decides: object_store, the library below
both, names each failed request.
"""

from __future__ import annotations

import re

from shallow_mirror.errors import ConfigError, MirrorError, StoreUnreachableError

_MOST_CHARACTERS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_XML_FIELD = re.compile(r"<(Code|Message)>([^<]*)</\1>")
_MARKUP = re.compile(r"<\?xml.*", re.DOTALL)
_PLACE = re.compile(r"Error performing (?:\w+ )?\S+ (\S+) in ")
_STATUS = re.compile(r"status code\W+(\d{3})\b([A-Za-z -]*)")
_BACKTRACE = re.compile(r"\s0: .*", re.DOTALL)
_DEBUG = re.compile(r"\s+Debug source:.*", re.DOTALL)
"""obstore repeats the error as the Rust structure that it is."""
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|FilesystemNotFound|The specified bucket does not exist")
_PAST_END = re.compile(r"InvalidRange|416 Range Not Satisfiable|Requested range was invalid|Wanted range starting at")
_NO_ANSWER = re.compile(
    r"operation timed out|Connection refused|Connection reset|connection closed before message completed|dns error|"
    r"tcp connect error|error trying to connect|connection error|URL scheme is not allowed|BadScheme|certificate[^.]*"
)
_OF_STORE = re.compile(
    r"Error performing |Generic (?:S3|MicrosoftAzure|GCS|HTTP) error|HTTP error|error sending request|"
    r"request or response body error|error decoding response body|status code\W+\d{3}|"
    r"[Dd]elete\w* request failed for key|lacked the necessary privileges|lacked valid authentication credentials"
)
_CONFIG = re.compile(
    r"Generic Config error|Failed to parse config|Unknown scheme|unknown configuration key|GCP credential error", re.IGNORECASE
)
_BAD_SCHEME = "BadScheme"
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
"""Only in the structure that obstore repeats."""
_NOT_DELETED = re.compile(r"[Dd]elete\w* request failed for key (.*?): (.*?) \(code: (\w+)\)")
"""One of many objects, in a response that is a success as a whole."""
_MAY_BE_DELETED_LATER = ("InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "503", "500")
_DISK = re.compile(
    r"(?:Generic LocalFileSystem error|Could not create local directory).*?"
    r"(No space left on device|Disk quota exceeded|Read-only file system|Permission denied)",
    re.DOTALL,
)
"""A folder is a store as well."""
_NOT_CONDITIONAL = "PutMode::Create"

_MAY_PASS = (408, 409, 412, 425, 429)
"""The only responses of the 400s that may change without a fix."""

_LOST_KEY = "NoSuchKey"
"""Of a file that the log of a table names: files that may be missing are not asked for so."""
_LOST_PART = "InvalidPart"
"""A store has confirmed a part of an upload and no longer has it."""

_REMEDY_LOST_FILE = (
    "the store has lost a file of the table: restore it from a copy or a former version; the table of an archive is also written "
    "again from its objects (archive verify --rebuild)"
)
_REMEDY_LOST_PART = "check the store and every proxy, gateway and cache in front of it; the object is to be written again"
REMEDY_DISK = "free or add space on the file system of the folder, and see that it is mounted for writing"
_DENIED = "Permission denied"
_REMEDY_ACCESS = "grant this user access to the folder and to the files in it"
_REMEDY_UNREACHABLE = "check that the store runs and that this machine reaches its endpoint"
_REMEDY_SLOW = "check the state and the request limits of the store"
_REMEDY_REFUSED = (
    "check the credentials and their permissions (storage.options, AWS_* in the environment), endpoint, region and bucket"
)
_REMEDY_CERTIFICATE = (
    "set storage.options.root_certificate to the certificate of its CA (${file:PATH}), or renew the certificate of the store"
)
_REMEDY_SCHEME = "for http:// endpoints set storage.options.AWS_ALLOW_HTTP: true"


def one_line(error: BaseException | str) -> str:
    """Return the text of an error as one line without colours, markup and backtrace, of 300 characters at most."""
    text = _COLOUR.sub("", str(error)).replace("↳", " - ")
    fields = dict(_XML_FIELD.findall(text))
    text = _BACKTRACE.sub("", _MARKUP.sub("", _DEBUG.sub("", text)))
    if fields:
        text = f"{text} {fields.get('Code', '')}: {fields.get('Message', '')}"
    text = re.sub(r"\s+", " ", text).strip(" :-")
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def is_missing(error: BaseException) -> bool:
    """Return whether obstore says that an object, and not its whole bucket, is missing."""
    return isinstance(error, FileNotFoundError) and _NO_BUCKET.search(str(error)) is None


def is_past_end(error: BaseException) -> bool:
    """Return whether obstore says that a range begins behind the end of an object."""
    return _PAST_END.search(str(error)) is not None


def store_error(error: BaseException, operation: str, table: str) -> MirrorError | None:
    """Return the error to raise if the store, or its options in the mirror file, are the cause. None for any other cause.

    `operation` completes "the store did not ...", `table` is the table's URI.
    """
    if isinstance(error, MirrorError):
        return error
    table = table.rstrip("/")
    text = _COLOUR.sub("", str(error))
    if _NOT_CONDITIONAL in text:
        return ConfigError(
            f"{table}: the option aws_conditional_put is disabled, and without conditional writes two runs cannot be "
            "kept apart: remove it from storage.options and from the environment (AWS_CONDITIONAL_PUT)"
        )
    if _CONFIG.search(text):
        return ConfigError(f"{table}: storage.options or `tables` cannot be used: {one_line(text)}")
    disk = _DISK.search(text)
    if disk is not None:
        is_denied = disk[1] == _DENIED
        return StoreUnreachableError(
            operation, table, disk[1], _REMEDY_ACCESS if is_denied else REMEDY_DISK, is_refused=is_denied
        )
    if not _OF_STORE.search(text):
        return None
    not_deleted = _NOT_DELETED.search(text)
    if not_deleted is not None:
        key, message, code_name = not_deleted.groups()
        is_refused = code_name not in _MAY_BE_DELETED_LATER
        remedy = _REMEDY_REFUSED if is_refused else _REMEDY_SLOW
        return StoreUnreachableError(operation, table, one_line(f"{code_name} {message} ({key})"), remedy, is_refused=is_refused)
    status = _STATUS.search(text)
    url = _PLACE.search(text)
    place = "" if url is None else url[1]
    if status is not None:
        return response_error(int(status[1]), status[2].strip(), text, place, operation, table)
    certificate = _CERTIFICATE.search(text)
    if certificate is not None:
        reason = f"its certificate is not accepted here: {certificate[1]}{_at(place)}"
        return StoreUnreachableError(operation, table, reason, _REMEDY_CERTIFICATE, is_refused=True)
    cause = _NO_ANSWER.search(text)
    reason = "no answer" if cause is None else cause[0]
    return no_answer_error("URL scheme is not allowed" if reason == _BAD_SCHEME else reason, place, operation, table)


def response_error(code: int, phrase: str, body: str, url: str, operation: str, table: str) -> StoreUnreachableError:
    """Return the error for a response that is not a success. The URL is shown without its query, which may be a signature."""
    fields = dict(_XML_FIELD.findall(body))
    response = " ".join(part for part in (str(code), fields.get("Code", phrase), fields.get("Message", "")) if part)
    if fields.get("Code") == _LOST_KEY:
        return StoreUnreachableError(operation, table, one_line(f"{response}{_at(url)}"), _REMEDY_LOST_FILE)
    if fields.get("Code") == _LOST_PART:
        return StoreUnreachableError(operation, table, one_line(f"{response}{_at(url)}"), _REMEDY_LOST_PART)
    is_refused = 400 <= code < 500 and code not in _MAY_PASS
    remedy = _REMEDY_REFUSED if is_refused else _REMEDY_SLOW
    return StoreUnreachableError(operation, table, one_line(f"{response}{_at(url)}"), remedy, is_refused=is_refused)


def no_answer_error(reason: str, url: str, operation: str, table: str) -> StoreUnreachableError:
    """Return the error for a request without a response. The URL is shown without its query, which may be a signature."""
    is_scheme = "scheme" in reason
    remedy = _REMEDY_SCHEME if is_scheme else _REMEDY_UNREACHABLE
    return StoreUnreachableError(operation, table, one_line(f"{reason}{_at(url)}"), remedy, is_refused=is_scheme)


def _at(url: str) -> str:
    return f" ({url.partition('?')[0]})" if url else ""
