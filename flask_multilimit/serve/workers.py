"""Warns at the first request if the processes that serve an app would together admit more than the limits, or would not
flush traffic."""

from __future__ import annotations

from flask import Flask, request

from ..config import Settings
from ..engine import Limiter
from ..engine.storage.addresses import redacted
from ..engine.text import SafeLogger
from ..engine.threads import threads_run


def warn_where_no_threads_run(app: Flask, settings: Settings) -> None:
    """Log a warning if traffic is counted, and the server lets no thread flush it."""
    if settings.traffic and settings.enabled and not threads_run():
        SafeLogger(app.logger).warning(
            "Rate limits: uWSGI runs no threads, so traffic is flushed only while requests are served: start it "
            "with enable-threads, or set MULTILIMIT_TRAFFIC=False."
        )


def warn_of_several_processes(app: Flask, settings: Settings, limiter: Limiter) -> None:
    """Log a warning if the server of the current request has several worker processes, and they share no storage or
    their number is unknown."""
    if not request.environ.get("wsgi.multiprocess") or not settings.enabled:
        return
    if not limiter.storage.shared:
        SafeLogger(app.logger).warning(
            "Rate limits: several worker processes serve this app, and with MULTILIMIT_STORAGE_URI=%s each of them "
            "admits the whole of every limit. Set a storage that they share: local:// on one machine (pip install "
            "'flask-multilimit[local]'), or a server, such as redis://localhost:6379/0.",
            redacted(settings.storage_uri),
        )
    elif not (workers := limiter.health().workers).certain:
        SafeLogger(app.logger).warning(
            "Rate limits: the number of worker processes that serve this app is unknown. While storage is away, each "
            "of them admits 1/%d of every limit (%s). Set MULTILIMIT_WORKERS.",
            workers.count,
            workers.source,
        )
