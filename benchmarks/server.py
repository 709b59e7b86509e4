"""One admitted decision on a server: ours, the peers', and the least that the system allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .contenders import PING, on_a_server
from .measure import Call, figures_of, in_turn, ratios_of
from .results import Figure
from .setting import Setting

PART = "server"
CALLS = 50
"""Bytes are counted over so many calls."""


def measure(setting: Setting) -> Iterator[Figure]:
    with setting.server_on_one_core() as server, on_a_server(server.tcp_url) as variants:
        samples = in_turn(variants, rounds=setting.rounds(200), server=server.pid)
        yield from ratios_of(PART, samples, PING, "times a PING")
        yield from figures_of(PART, samples)
        client = server.client()
        for (who, case), call in variants.items():
            yield Figure(PART, who, case, "commands", commands_of(client, call))
            yield Figure(PART, who, case, "bytes", bytes_of(client, call))


def commands_of(client: Any, call: Call) -> int:
    """The number of commands that the server receives, without those that a script calls."""
    sent = []
    with client.monitor() as monitor, client.client() as own:
        own.echo("begin")
        call()
        own.echo("end")
        for line in iter(monitor.next_command, None):
            if line["command"] == "ECHO end":
                break
            # Processes look for changes in the background.
            if line["client_type"] != "lua" and "{control}" not in line["command"]:
                sent.append(line["command"])
    return len(sent) - sent.index("ECHO begin") - 1


def bytes_of(client: Any, call: Call) -> int:
    """The bytes on the wire, in both directions."""
    before, start = _bytes(client), _bytes(client)
    for _ in range(CALLS):
        call()
    asking = start - before
    return round((_bytes(client) - start - asking) / CALLS)


def _bytes(client: Any) -> int:
    stats = client.info("stats")
    return int(stats["total_net_input_bytes"] + stats["total_net_output_bytes"])
