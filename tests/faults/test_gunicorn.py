"""Faults under load, through a real gunicorn with two workers of four threads."""

import re
from collections.abc import Iterator

import pytest

from faults.serving import BEFORE, CLIENTS, LIMIT, Service, serving
from faults.world import FAULTS, Fault
from support.servers import Binary

UNDER_LOAD = {"SIGSTOP", "SIGKILL, restart", "REPLICAOF (READONLY)", "blackhole", "replies a byte at a time"}


@pytest.fixture(scope="module")
def service(binary: Binary) -> Iterator[Service]:
    with serving(binary) as service:
        yield service


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in UNDER_LOAD], ids=lambda each: each.name)
def test_users_see_only_their_limits_during_a_fault(service: Service, fault: Fault) -> None:
    lines = len(service.program.log.splitlines())

    seen = service.suffer(fault)

    assert seen.statuses <= {200, 429}
    # At worst one of the workers has not met this user before the fault, and admits its whole share; a server that
    # lost its memory admits anew what it had admitted before.
    assert LIMIT * 0.5 <= seen.admitted <= LIMIT * (2 if fault.forgets else 1) + BEFORE // 2 + CLIENTS
    assert seen.recovered
    logged = [line for line in service.program.log.splitlines()[lines:] if "Rate limits:" in line]
    assert len([line for line in logged if "storage failed (key" in line]) <= 2
    assert len([line for line in logged if "the storage is back after" in line]) <= 2
    assert not re.search("Traceback|Error 500", "\n".join(service.program.log.splitlines()[lines:]))
    admin = service.world.admin
    assert -1 not in {admin.pttl(key) for key in admin.scan_iter()}
