"""Turns an error of a ``redis`` client into a :class:`StorageError` that says what to do."""

from __future__ import annotations

import re

from redis import exceptions
from redis.sentinel import MasterNotFoundError

from ...errors import StorageError

RIGHTS = (
    "+eval +evalsha +unlink +time +get +set +del +pexpire +zadd +zcard +zcount +zrange +zrem "
    "+zremrangebyrank +zremrangebyscore +zscore"
)
"""The rights that a user of the server needs to check limits, and no more."""
RIGHTS_OF_WORKERS = "+hget +hset +xadd +xrevrange +info"
"""The further rights to follow changes, and to put them back after a restart of the server."""
RIGHTS_OF_OPERATORS = "+scan +pttl +ping +config|get"
"""The further rights of people who change and examine limits, by commands or the dashboard."""
RIGHTS_IN_A_CLUSTER = "+cluster|slots +asking"
"""The further rights to find the servers and to follow a slot that is being moved."""

REMEDIES = {
    "NOAUTH": "give the password: redis://user:password@host, or in the client",
    "WRONGPASS": "the user or the password in the storage URI is wrong",
    "NOPERM": f"the server's user needs, on the keys that begin with MULTILIMIT_KEY_PREFIX, {RIGHTS} to check limits, "
    f"{RIGHTS_OF_WORKERS} in workers that follow changes, {RIGHTS_OF_OPERATORS} for commands and the dashboard "
    f"(besides, {RIGHTS_IN_A_CLUSTER} in a cluster, and +select for a database other than 0)",
    "WRONGTYPE": "something else writes to this key: give MULTILIMIT_KEY_PREFIX, or the limiter, another prefix",
    "CROSSSLOT": "the server is one of a cluster: name it redis+cluster://host:port, which asks slot by slot",
    "MOVED": "the server is one of a cluster: name it redis+cluster://host:port, which asks the owner of the slot",
    "ASK": "the server is one of a cluster: name it redis+cluster://host:port, which asks the owner of the slot",
    "READONLY": "the server has become a replica: name the primary, or use redis+sentinel://",
    "OOM": "the server is out of memory: raise maxmemory, or give the limits a server of their own",
    "MISCONF": "the server cannot save to disk and therefore takes no writes: see its log, or set "
    "stop-writes-on-bgsave-error to no",
    "LOADING": "the server is loading its data, and will answer once it has finished",
    "BUSY": "a script keeps the server busy: SCRIPT KILL ends it",
    "NO_CLUSTER": "the server is not part of a cluster: use redis://host:port",
    "CLUSTERDOWN": "the cluster has lost slots: see CLUSTER INFO",
    "MASTERDOWN": "the replica has lost its primary",
    "NOREPLICAS": "the primary has too few replicas to take writes: see min-replicas-to-write",
    "TRYAGAIN": "the slot is being moved; the server will answer once that is done",
    "UNKNOWN": "a command is renamed, disabled or missing on the server: checks need "
    f"{RIGHTS.replace('+', '').replace(' ', ', ')}. (A sentinel has none of them: name it redis+sentinel://)",
    "DATABASE": "the server has no database with the number in the storage URI: see its setting `databases` (a cluster "
    "has only 0)",
    "ERR": "the server, or a proxy before it, has refused the command: see its log",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate must be signed by a CA that is known here (ssl_ca_certs in "
    "the storage URI names a file of them), be for the host in the URI, and not have expired",
}
"""What to do, by the error code of the server or the reason that TLS gives."""

TOO_LATE = (
    "check whether the server hangs, is overloaded, or cannot be reached; MULTILIMIT_STORAGE_TIMEOUT is the time it "
    "has to answer"
)
RAISE_FILES = "this process has as many files and connections open as it may: raise its limit (ulimit -n)"
NOBODY_THERE = "start the server, or correct the storage URI"

KEY_SPECIFIC = frozenset({"WRONGTYPE", "CROSSSLOT"})
"""Codes of errors that concern only the keys of the check, not the server."""
ELSEWHERE = frozenset({"ASK", "MOVED", "TRYAGAIN"})
"""Codes by which a server of a cluster says that another one has the keys, or some of them."""

_CODE = rf"\b({'|'.join(code for code in REMEDIES if code not in {'UNKNOWN', 'DATABASE', 'ERR'})})\b"
_TEXT = (
    r"(?P<UNKNOWN>[Uu]nknown (?:\w+ )?command)"  # Redis, Redict, server
    r"|(?P<NOPERM>ACL failure in script|user executing the script can't)"  # Redis 7.2 and Valkey, Redis 7.0
    r"|(?P<DATABASE>DB index is out of range|SELECT is not allowed)"
    r"|(?P<NO_CLUSTER>cluster support disabled)"
)
"""The texts of errors without a code of the server, each in a group called after a code of this module."""
_NO_RIGHT_TO_RUN = r"permissions to run the '([a-z|_-]{1,40})'"
_ARGUMENTS = ", with args beginning with:"
_NO_RIGHT_TO_KEY = "permissions to access"
IN_A_SCRIPT = "script"
"""In the text of each error of a script that has begun. Other errors without a known code come from a proxy whose
server is down."""
_CLASSES = {
    "NOPERM": exceptions.NoPermissionError,
    "READONLY": exceptions.ReadOnlyError,
    "OOM": exceptions.OutOfMemoryError,
    "LOADING": exceptions.BusyLoadingError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "MASTERDOWN": exceptions.MasterDownError,
    "TRYAGAIN": exceptions.TryAgainError,
    "CROSSSLOT": exceptions.ClusterCrossSlotError,
    "MOVED": exceptions.MovedError,
    "ASK": exceptions.AskError,
}
"""Errors from whose text redis-py removes the code."""

NONE_FREE = "Too many connections"
"""What redis-py says if all connections of a pool are in use."""
_NONE_FREE_IN_TIME = "No connection available."
"""What it says if that is so until a pool waits no longer."""
_SERVER_IS_FULL = "max number of clients reached"
_PROCESS_IS_FULL = "Too many open files"
_NO_REPLY = (exceptions.TimeoutError, exceptions.ConnectionError, OSError, MemoryError)
FAILURES = (exceptions.RedisError, OSError, MemoryError, UnicodeError)
"""What redis-py raises if a server, or the connection to it, fails. A reply that announces more elements than the
memory holds is a ``MemoryError``; one that a client cannot decode, or an impossible host name, a ``UnicodeError``."""


def storage_error(error: Exception, server: str = "") -> StorageError:
    """The error to raise because of ``error``, which ``server`` or the connection to it caused."""
    if isinstance(error, MasterNotFoundError):
        error.args = (str(error).partition(" : ")[0],)  # the rest shows clients, with their passwords
    elif _ARGUMENTS in str(error):
        error.args = (str(error).partition(_ARGUMENTS)[0],)  # the rest shows keys, with subjects
    error.__suppress_context__ = True  # its context inside the client tells nothing new
    code = code_of(error)
    where = f" ({server})" if server else ""
    shown = "the reply needs more memory than there is" if isinstance(error, MemoryError) else error
    did = "gave no answer" if code in {"", "CERTIFICATE_VERIFY_FAILED"} else "refused a command"
    in_script = code == "ERR" and IN_A_SCRIPT in str(error)
    no_reply = not code and isinstance(error, _NO_REPLY)
    missing = _missing_right(str(error)) if code == "NOPERM" else ""
    failure = StorageError(
        f"the rate limit storage {did}{where}: {type(error).__name__}: {shown}",
        remedy=missing or REMEDIES.get("" if in_script else code) or _remedy_of(error, no_reply=no_reply),
        key_specific=code in KEY_SPECIFIC or in_script,
        no_reply=no_reply,
    )
    failure.server_code = code
    failure.__cause__ = error
    return failure


def _missing_right(error: str) -> str:
    """The remedy if the server says which right is missing; else empty. Before Redis 7.2, no server says it for a
    script."""
    if _NO_RIGHT_TO_KEY in error:
        return (
            "the server's user needs a right to the keys that begin with MULTILIMIT_KEY_PREFIX, such as ~rate_limit:*"
        )
    command = re.search(_NO_RIGHT_TO_RUN, error)
    return f"the server's user needs the right +{command[1]}" if command else ""


def _remedy_of(error: Exception, *, no_reply: bool) -> str:
    """The remedy for an error without a code of the server."""
    if str(error) in {NONE_FREE, _NONE_FREE_IN_TIME}:
        return (
            "more checks run at once than max_connections in the storage URI, or of the client's pool, allows: raise it"
        )
    if _SERVER_IS_FULL in str(error):
        return "the server has as many connections as its maxclients allows: raise it, or use fewer workers or threads"
    if _PROCESS_IS_FULL in str(error):
        return RAISE_FILES
    own: str | None = getattr(error, "remedy", None)
    if own is not None or not no_reply:
        return own or ""
    late = isinstance(error, (exceptions.TimeoutError, TimeoutError))
    return TOO_LATE if late else NOBODY_THERE


def is_full(error: Exception) -> bool:
    """Whether there can be no further connection, while those that are open go on."""
    return any(text in str(error) for text in (NONE_FREE, _NONE_FREE_IN_TIME, _SERVER_IS_FULL, _PROCESS_IS_FULL))


def code_of(error: Exception) -> str:
    """The server's code for ``error``, or the reason that TLS gives; empty if there is none, for example without an
    answer.

    Servers put the code of an error inside a script in different places.
    """
    if isinstance(error, exceptions.AuthenticationError):
        return "NOAUTH" if "required" in str(error) else "WRONGPASS"
    for code, kind in _CLASSES.items():
        if isinstance(error, kind):
            return code
    if not isinstance(error, exceptions.ResponseError):
        return "CERTIFICATE_VERIFY_FAILED" if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
    known = re.search(_TEXT, str(error))
    if known is not None:
        return str(known.lastgroup)
    match = re.search(_CODE, str(error))
    return match[1] if match else "ERR"
