"""The addresses of clients: one client, however it or a proxy writes the address."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from socket import AF_INET, inet_ntop, inet_pton

LONGEST_ADDRESS = 64
"""Characters. An IPv6 address with a zone and a port has fewer, but an app that trusts too many proxies gets text of
any length."""


def without_port(address: str) -> str:
    """``203.0.113.7`` for ``203.0.113.7:50001``, and ``2001:db8::1`` for ``[2001:db8::1]:443``, as some proxies write
    into ``X-Forwarded-For``; any other ``address`` is returned as it is."""
    match = re.fullmatch(_WITH_PORT, address)
    return address if match is None else match["ipv4"] or match["ipv6"]


_WITH_PORT = r"(?P<ipv4>[0-9.]+):[0-9]{1,5}|\[(?P<ipv6>[^\[\]]+)\](:[0-9]{1,5})?"


def network_of(address: str, ipv6_prefix: int) -> str:
    """The client that ``address`` stands for, in its canonical form: an IPv4 address, or an IPv6 network.

    Anything else, such as the peer of a unix socket, stays as it is: one subject.
    """
    return _network_of(address, ipv6_prefix) if len(address) <= LONGEST_ADDRESS else address


def _is_plain_ipv4(address: str) -> bool:
    """Whether it is one in canonical form, as nearly all are: this takes a tenth of the time of parsing."""
    try:
        return inet_ntop(AF_INET, inet_pton(AF_INET, address)) == address
    except (OSError, ValueError):
        return False


@lru_cache(maxsize=4096)
def _network_of(address: str, ipv6_prefix: int) -> str:
    if _is_plain_ipv4(address):
        return address
    try:
        parsed = ip_address(without_port(address).partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, ipv6_prefix), strict=False))
