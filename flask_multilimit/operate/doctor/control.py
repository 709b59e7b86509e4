"""Whether limits can be changed while the app runs, and whether the changes are in force."""

from __future__ import annotations

from collections.abc import Iterator

from redis.exceptions import RedisError

from ...config import PREFIX
from ...control.store import DOCUMENT
from ...engine import ConfigurationError, StorageError
from ...engine.storage.redis.failures import RIGHTS_OF_WORKERS, code_of
from ...insight.health import forgets_changes
from ...insight.workers import workers
from ...serve.applier import ControlApplier, applier_of
from ...serve.gate import AppGate
from .findings import Finding, Severity, remedy_for

MANY_ENDED = 100
"""So many ended entries in the control document deserve a hint."""


def examine_control(gate: AppGate) -> Iterator[Finding]:
    applier = applier_of(gate.app)
    if not applier.enabled:
        text = f"{PREFIX}CONTROL or {PREFIX}ENABLED is False: limits cannot be changed while the app runs."
        yield Finding("control", Severity.HINT, text, "Leave the settings out to change limits without a deploy.")
    if not (applier.enabled and applier.control.shared):
        return
    try:
        entries, idle = applier.control.entries(), applier.control.idle()
    except StorageError as error:
        if not error.no_reply:  # otherwise the storage has a finding of its own
            yield _not_readable(error)
        return
    except ConfigurationError as error:
        text = f"The changes in the storage are not in force: {str(error).rstrip('.')}."
        yield Finding("control", Severity.WRONG, text, _LOOK_AT_IT)
        return
    if applier.control.problem is not None:
        text = f"The newest changes are not in force: {str(applier.control.problem).rstrip('.')}."
        yield Finding("control", Severity.WRONG, text, "Undo what does not fit: `flask multilimit unset`.")
    for each in entries:
        if each.id in idle:
            text = f"{each} ({each.id}) applies to nothing: its endpoint or rule is gone."
            yield Finding("control", Severity.WARNING, text, f"flask multilimit unset {each.id}")
    found = workers(gate)
    if found is not None:
        severity = Severity.OK if found.agree else Severity.WARNING
        yield Finding("workers", severity, f"{found}.", "" if found.agree else _RESTART)
    if entries and forgets_changes(gate):
        text = "The server keeps nothing on disk: with it and all workers, the changes in force would end."
        yield Finding("control", Severity.WARNING, text, "Set appendonly yes on the server.")
    yield from _ended(applier, len(entries))


def _ended(applier: ControlApplier, holding: int) -> Iterator[Finding]:
    ended = len(applier.follower.in_force.document.entries) - holding
    if ended > MANY_ENDED:
        text = f"{ended} entries have ended, but are still in the document that each worker reads when it changes."
        yield Finding("control", Severity.HINT, text, "The next change removes them.")
        return
    text = f"{holding} changed while the app runs." if holding else "Nothing is changed: all limits are as declared."
    yield Finding("control", Severity.OK, text)


def _not_readable(error: StorageError) -> Finding:
    if isinstance(error.__cause__, RedisError) and code_of(error.__cause__) == "NOPERM":
        text = "The server's user may not read changes, so limits cannot be changed while the app runs."
        return Finding("control", Severity.HINT, text, f"Allow {RIGHTS_OF_WORKERS}; or set {PREFIX}CONTROL=False.")
    text = f"The changes in the storage cannot be read: {str(error).rstrip('.')}."
    return Finding("control", Severity.WRONG, text, remedy_for(error, _LOOK_AT_IT))


_RESTART = "Restart the workers that are behind. After a deploy by HUP: no --preload, no import in gunicorn.conf.py."
_LOOK_AT_IT = (
    f"Update this process, or look at the key whose name ends in {DOCUMENT}: it is a hash, and its field `document` is "
    "JSON. To start over, delete the key."
)
