"""The gauges of several processes of one app are combined as each metric says: the worst, the most, or the sum."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, multiprocess

PROCESS = '''
import sys
from types import SimpleNamespace
from flask_multilimit.observe.events import ControlState
from flask_multilimit.observe.prometheus import PrometheusMetrics

class App(SimpleNamespace):
    """Unlike a SimpleNamespace, it can be weakly referenced."""

state, breaker, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
metrics = PrometheusMetrics()
app = App(
    name="shop",
    health=lambda: SimpleNamespace(state=state, breaker=breaker, pending=number, fallback_keys=number),
    leases=lambda: number,
    control=lambda: ControlState(number, float(number), {"ban": number}),
    bans=lambda: {("login", "ip-ban"): number},
    top_shares=lambda: {"login": number / 10},
    every_second=lambda task: None,
)
metrics.attach(app)
assert metrics.flush(), "keys that are counted here change without a request, also when the storage is back"
'''


@pytest.mark.slow
def test_gauges_of_several_processes_are_combined(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for arguments in (("working", "closed", "3"), ("failed", "open", "5"), ("working", "closed", "4")):
        subprocess.run([sys.executable, "-c", PROCESS, *arguments], env=environment, check=True)

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]

    def shown(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"multilimit_{name}", {"app": "shop", **labels})

    assert shown("storage_up") == 0, "one process has no answer from the storage"
    assert [shown("storage_breaker", state=state) for state in ("closed", "half-open", "open")] == [2, 0, 1]
    assert [shown(name) for name in ("pending_charges", "fallback_keys", "leases")] == [12, 12, 12]
    assert shown("control_version") == 3, "the oldest version of all"
    assert shown("control_age_seconds") == 5, "the oldest of all"
    assert shown("control_entries", kind="ban") == 5
    assert shown("bans_in_force", endpoint="login", rule="ip-ban") == 5, "each process shows the bans of all"
    assert shown("top_subject_share", endpoint="login") == 0.5
