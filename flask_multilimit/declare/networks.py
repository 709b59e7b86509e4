"""Networks: how they are written, and which of thousands of them an address lies in."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from socket import AF_INET, AF_INET6, inet_pton
from typing import Generic, TypeVar

from ..engine import ConfigurationError
from ..engine.errors import brief

T = TypeVar("T")

LONGEST_ADDRESS = 64
"""Characters; an IPv6 address with a zone and a port has fewer. (A proxy that is trusted too far hands on anything.)"""

_MAPPED = 0xFFFF << 32
"""IPv6 addresses from here on stand for IPv4 addresses (RFC 4291, 2.5.5.2)."""
_ALL_V4 = 1 << 32

Network = IPv4Network | IPv6Network


def without_port(address: str) -> str:
    """``203.0.113.7`` for ``203.0.113.7:50001``, and ``2001:db8::1`` for ``[2001:db8::1]:443``, as some proxies write
    into ``X-Forwarded-For``; else ``address`` itself."""
    match = _WITH_PORT.fullmatch(address)
    return address if match is None else match["ipv4"] or match["ipv6"]


_WITH_PORT = re.compile(r"(?P<ipv4>[0-9.]+):[0-9]{1,5}|\[(?P<ipv6>[^\[\]]+)\](:[0-9]{1,5})?")


def network_from(text: object) -> Network:
    """The network that ``text`` writes: ``"203.0.113.0/24"``, or an address, which is a network of one.

    IPv4-mapped IPv6 is the IPv4 it stands for. Raises :class:`ConfigurationError`.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f'network {brief(text)}: give text such as "203.0.113.0/24"')
    try:
        network = ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigurationError(
            f'network {brief(text)}: write it as "203.0.113.7", "203.0.113.0/24" or "2001:db8::/32"'
        ) from None
    if isinstance(network, IPv6Network):
        if "%" in text:
            raise ConfigurationError(f"network {brief(text)}: leave the zone out")
        first = int(network.network_address)
        if network.prefixlen >= 96 and first >> 32 == 0xFFFF:
            return IPv4Network((first & 0xFFFFFFFF, network.prefixlen - 96))
    return network


@dataclass(frozen=True, slots=True)
class _Segments(Generic[T]):
    """Disjoint ranges of addresses: segment ``i`` begins at ``starts[i]`` and ends where the next one begins."""

    starts: list[int]
    values: list[T | None]

    def find(self, address: int) -> T | None:
        return self.values[bisect_right(self.starts, address) - 1]


class Networks(Generic[T]):
    """Finds the smallest of ``networks`` that an address lies in, in a few comparisons however many there are."""

    def __init__(self, networks: Iterable[tuple[Network, T]]) -> None:
        v4: list[tuple[Network, T]] = []
        v6: list[tuple[Network, T]] = []
        for network, value in networks:
            (v4 if network.version == 4 else v6).append((network, value))
        self._size = len(v4) + len(v6)
        self._v4 = _segments(v4)
        self._v6 = _segments(v6)

    def __len__(self) -> int:
        return self._size

    def find(self, address: str) -> T | None:
        """What belongs to the smallest network around ``address``; ``None``: it lies in none, or is no address."""
        try:
            if ":" not in address:
                return self._v4.find(int.from_bytes(inet_pton(AF_INET, address), "big"))
            if len(address) > LONGEST_ADDRESS:
                return None
            number = int.from_bytes(inet_pton(AF_INET6, address.partition("%")[0]), "big")
        except (OSError, ValueError):  # the peer of a unix socket, say; ValueError: a NUL or a surrogate in it
            bare = without_port(address)
            return None if bare == address else self.find(bare)
        if _MAPPED <= number < _MAPPED + _ALL_V4:
            return self._v4.find(number - _MAPPED)
        return self._v6.find(number)


def _segments(networks: Iterable[tuple[Network, T]]) -> _Segments[T]:
    """Networks lie apart or one within another, so going up the addresses the open ones are a stack."""
    ordered = sorted(networks, key=lambda each: (int(each[0].network_address), each[0].prefixlen))
    starts: list[int] = [0]
    values: list[T | None] = [None]
    open_: list[tuple[int, T]] = []  # where each ends, and its value; the innermost is last

    def begin(at: int, value: T | None) -> None:
        if starts[-1] == at:
            values[-1] = value
        else:
            starts.append(at)
            values.append(value)

    def close_until(at: int) -> None:
        while open_ and open_[-1][0] <= at:
            end, _ = open_.pop()
            begin(end, open_[-1][1] if open_ else None)

    for network, value in ordered:
        first = int(network.network_address)
        close_until(first)
        open_.append((first + network.num_addresses, value))
        begin(first, value)
    close_until(1 << 129)
    return _Segments(starts, values)
