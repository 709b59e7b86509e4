"""As in the documentation: removes the gauges of a worker that has ended."""

from typing import Any

from prometheus_client import multiprocess


def child_exit(server: Any, worker: Any) -> None:  # noqa: ARG001 - gunicorn's signature
    multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
