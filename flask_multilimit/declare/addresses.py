"""Addresses and networks: one client, however its address is written, and which of thousands of networks it is in."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Generic, NamedTuple, TypeVar

from ..engine import ConfigurationError
from ..engine.errors import brief
from ..engine.keys import TYPE_PATTERN, is_misspelled
from ..engine.text import LONGEST_ADDRESS, LONGEST_SUBJECT, Phrase, unquoted


def without_port(address: str) -> str:
    """``203.0.113.7`` for ``203.0.113.7:50001``, and ``2001:db8::1`` for ``[2001:db8::1]:443``, as some proxies write
    into ``X-Forwarded-For``; any other ``address`` is returned as it is."""
    match = re.fullmatch(_WITH_PORT, address)
    return address if match is None else match["ipv4"] or match["ipv6"]


_WITH_PORT = r"(?P<ipv4>[0-9.]+):[0-9]{1,5}|\[(?P<ipv6>[^\[\]]+)\](:[0-9]{1,5})?"


LIKE_ADDRESS = re.compile(r"[\s\da-fA-F/]*[.:][\s\da-fA-F/.:]*")
"""Unlike "unix:" and "localhost", which servers also give."""


def network_of(address: str, ipv6_prefix: int) -> str:
    """The client that ``address``, or the network of one client, stands for, in its canonical form: an IPv4 address, or
    an IPv6 network.

    Anything else, such as the peer of a unix socket, stays as it is: one subject. But what looks like an address or a
    network gets another form, which names no other client: if too many proxies are trusted, a client can choose it.
    """
    if len(address) > LONGEST_ADDRESS or _is_plain_ipv4(address):
        return address
    try:
        parsed = ip_address(without_port(address).partition("%")[0])
    except ValueError:
        network = usual_network(address) if "/" in address else None
        client = None if network is None else client_in(network, ipv6_prefix)
        return client or (f"invalid:{address}" if LIKE_ADDRESS.fullmatch(address) else address)
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, ipv6_prefix), strict=False))


def client_in(network: Network, ipv6_prefix: int) -> str | None:
    """The one client that ``network`` is for limits; ``None`` if it has several."""
    client = network_of(network.address, ipv6_prefix)
    return client if network.num_addresses == 1 or client == str(network) else None


def _is_plain_ipv4(address: str) -> bool:
    """Whether it is one in canonical form, as nearly all are: this takes a tenth of the time of parsing."""
    try:
        return inet_ntop(AF_INET, inet_pton(AF_INET, address)) == address
    except (OSError, ValueError):
        return False


T = TypeVar("T")

_MAPPED = 0xFFFF << 32
"""The first IPv6 address that stands for an IPv4 address (RFC 4291, 2.5.5.2)."""
_ALL_V4 = 1 << 32


class Network(NamedTuple):
    """A network of IPv4 or IPv6: much lighter than those of :mod:`ipaddress`, for lists of many thousands."""

    version: int
    first: int
    """Its first address, as a number."""
    prefixlen: int

    @property
    def num_addresses(self) -> int:
        return 1 << (_BITS[self.version] - self.prefixlen)

    def has(self, address: AddressNumber) -> bool:
        """Whether it contains ``address``."""
        version, number = address
        return version == self.version and self.first <= number < self.first + self.num_addresses

    @property
    def address(self) -> str:
        """Its first address, as people write it."""
        if self.version == 4:
            return inet_ntop(AF_INET, self.first.to_bytes(4, "big"))
        text = inet_ntop(AF_INET6, self.first.to_bytes(16, "big"))
        return text if "." not in text else str(IPv6Address(self.first))  # "::1.2.3.4", which is not the IPv4 address

    def __str__(self) -> str:
        return f"{self.address}/{self.prefixlen}"


_BITS = {4: 32, 6: 128}
_LENGTHS = {str(length): length for length in range(129)}


def network_from(text: object) -> Network:
    """The network that ``text`` names: ``"203.0.113.0/24"``, or an address, which is a network of one.

    An IPv4-mapped IPv6 address is the IPv4 address that it stands for. Raises :class:`ConfigurationError`.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f'network {brief(text)}: give text such as "203.0.113.0/24"')
    if (network := usual_network(text)) is not None:
        return network
    try:
        read = ip_network(text.strip() if len(text) <= LONGEST_ADDRESS else "", strict=False)  # also reads netmasks
    except ValueError:
        raise ConfigurationError(
            f'network {brief(text)}: write it as "203.0.113.7", "203.0.113.0/24" or "2001:db8::/32"'
        ) from None
    if "%" in text:
        raise ConfigurationError(f"network {brief(text)}: leave the zone out")
    return _network(read.version, int(read.network_address), read.prefixlen)


def usual_network(text: str) -> Network | None:
    """The network in ``text`` if it has the usual form, with a prefix length; otherwise ``None``.

    This takes a fifth of the time of :mod:`ipaddress`.
    """
    if len(text) > LONGEST_ADDRESS:
        return None
    address, slash, length = text.strip().partition("/")
    version, family = (6, AF_INET6) if ":" in address else (4, AF_INET)
    try:
        packed = inet_pton(family, address)
    except (OSError, ValueError):  # ValueError: a NUL or a surrogate in it
        return None
    bits = _BITS[version]
    prefixlen = _LENGTHS.get(length, bits + 1) if slash else bits
    if prefixlen > bits:
        return None
    return _network(version, int.from_bytes(packed, "big") >> (bits - prefixlen) << (bits - prefixlen), prefixlen)


def _network(version: int, first: int, prefixlen: int) -> Network:
    if version == 6 and prefixlen >= 96 and first >> 32 == 0xFFFF:
        return Network(4, first & 0xFFFFFFFF, prefixlen - 96)
    return Network(version, first, prefixlen)


class Networks(Generic[T]):
    """Finds the smallest of ``networks`` that contains an address, by one look-up for each length that their prefixes
    have, however many they are."""

    def __init__(self, networks: Iterable[tuple[Network, T]]) -> None:
        # Numbers only: each of thousands of objects would also cost the garbage collector time.
        by_length = defaultdict[tuple[int, int], dict[int, T]](dict)
        for (version, first, prefixlen), value in networks:
            free_bits = _BITS[version] - prefixlen
            by_length[version, free_bits][first >> free_bits] = value
        self._smallest_first = {
            version: [(free_bits, by_length[at, free_bits]) for at, free_bits in sorted(by_length) if at == version]
            for version in _BITS
        }

    def find(self, address: str) -> T | None:
        """The value of the smallest network around ``address``; ``None`` if there is none, or it is not an address."""
        found = number_of(address)
        return None if found is None else self.at(found)

    def at(self, address: AddressNumber) -> T | None:
        """As :meth:`find`, for an address that was parsed."""
        version, number = address
        for free_bits, values in self._smallest_first[version]:
            found = values.get(number >> free_bits)
            if found is not None:
                return found
        return None


AddressNumber = tuple[int, int]
"""The version and the number of an address. An IPv4-mapped IPv6 address counts as the IPv4 address."""


def number_of(address: str) -> AddressNumber | None:
    """The version and the number of ``address``; ``None`` if it is not an address."""
    try:
        if ":" not in address:
            return 4, int.from_bytes(inet_pton(AF_INET, address), "big")
        if len(address) > LONGEST_ADDRESS:
            return None
        number = int.from_bytes(inet_pton(AF_INET6, address.partition("%")[0]), "big")
    except (OSError, ValueError):  # such as the peer of a unix socket; ValueError: a NUL or a surrogate in it
        bare = without_port(address)
        return None if bare == address else number_of(bare)
    return (4, number - _MAPPED) if _MAPPED <= number < _MAPPED + _ALL_V4 else (6, number)


def addresses_in(networks: Iterable[Network]) -> int:
    """How many addresses ``networks`` of one version have together."""
    total = end = 0
    for network in sorted(networks):
        last = network.first + network.num_addresses
        total += max(last - max(network.first, end), 0)
        end = max(end, last)
    return total


class Who(NamedTuple):
    """A network, or a subject of a type. ``str(who)`` writes it as entries do: ``203.0.113.0/24``, ``user:42``."""

    network: Network | None
    """``None`` for a subject."""
    type_name: str = ""
    """The type of the subject, such as ``user``."""
    value: str = ""
    """The subject, such as ``42``."""

    @classmethod
    def parse(cls, text: object) -> Who:
        """From ``"203.0.113.0/24"``, ``"2001:db8::7"``, ``"203.0.113.7:80"`` (without the port), ``"user:42"``, also as
        :func:`.quoted` writes it. Text that can be read as a network is one. A :class:`Who` is returned as it is.
        Raises :class:`ConfigurationError`."""
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise mistaken_client(text, _REMEDY)
        text = unquoted(text)
        if len(text) > LONGEST_SUBJECT:
            raise mistaken_client(text, Phrase("give at most {n} characters", n=LONGEST_SUBJECT))
        if (network := usual_network(without_port(text))) is not None:
            return cls(network)
        type_name, colon, value = text.partition(":")
        if not colon or type_name == "ip":
            try:
                return cls(network_from(without_port(value) if colon else text))
            except ConfigurationError:
                raise mistaken_client(text, _REMEDY) from None
        if is_misspelled(type_name) or not TYPE_PATTERN.fullmatch(type_name) or "+" in type_name:
            raise mistaken_client(text, _REMEDY)
        return cls(None, type_name, value)

    def __str__(self) -> str:
        if self.network is None:
            return f"{self.type_name}:{self.value}"
        return str(self.network) if self.network.num_addresses > 1 else self.network.address


_REMEDY = Phrase(
    'give a network such as "203.0.113.0/24", or a subject such as "user:42" (the name of its type before the colon)'
)


def mistaken_client(text: object, remedy: Phrase) -> ConfigurationError:
    """The error about a ``text`` that names no client."""
    return ConfigurationError(Phrase("{given}: {remedy}", given=brief(text), remedy=remedy))
