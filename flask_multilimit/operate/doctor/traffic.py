"""Whether people can see who is refused."""

from __future__ import annotations

import os

from ...config import PREFIX
from ...engine.storage import KeepsTallies
from ...engine.threads import lets_threads_run, threads_run
from ...serve.gate import AppGate
from .findings import Finding, Severity


def examine_traffic(gate: AppGate) -> Finding:
    if not gate.settings.traffic:
        text = f"{PREFIX}TRAFFIC is False: nobody can see who is refused."
        return Finding("traffic", Severity.HINT, text, "Leave the setting out, unless you count by other means.")
    if not isinstance(gate.limiter.storage, KeepsTallies):
        text = f"A {type(gate.limiter.storage).__name__} keeps no traffic: it has no methods tally and tallies."
        return Finding("traffic", Severity.HINT, text, "`flask multilimit top` shows nothing; the log does.")
    uwsgi = {_uwsgi_option(name): value for name, value in os.environ.items() if name.startswith("UWSGI_")}
    if not threads_run() or (uwsgi and not lets_threads_run(uwsgi)):
        text = "uWSGI seems to run no threads: traffic is flushed only while requests are served."
        return Finding("traffic", Severity.WARNING, text, "Start uWSGI with enable-threads.")
    return Finding("traffic", Severity.OK, "Counted in each process, and kept in the storage for an hour.")


def _uwsgi_option(variable: str) -> str:
    return variable.removeprefix("UWSGI_").lower().replace("_", "-")
