"""Networks and addresses are read like ``ipaddress`` does, and the smallest network around an address is found."""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flask_multilimit import ConfigurationError
from flask_multilimit.declare.addresses import Networks, Who, addresses_in, network_from, number_of
from flask_multilimit.engine.text import quoted

Network = IPv4Network | IPv6Network
MAPPED = IPv6Network("::ffff:0:0/96")

# Few different bytes, so that networks contain each other and the addresses.
BITS = st.lists(st.sampled_from([0, 1, 2, 127, 128, 255]), min_size=16, max_size=16).map(bytes)
V4 = st.builds(lambda bits, prefix: ip_network((bits[:4], prefix), strict=False), BITS, st.integers(0, 32))
V6 = st.builds(lambda bits, prefix: ip_network((bits, prefix), strict=False), BITS, st.integers(0, 128))
ADDRESSES = BITS.map(lambda bits: ip_address(bits[:4])) | BITS.map(ip_address)


def smallest_prefix_around(networks: list[Network], address: IPv4Address | IPv6Address) -> int | None:
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    around = [network for network in networks if address in network]
    return max((network.prefixlen for network in around), default=None)


@given(st.lists(V4 | V6, max_size=30), ADDRESSES)
@example([ip_network("203.0.113.0/24")], ip_address("203.0.114.0"))
@example([ip_network("::/0")], ip_address("203.0.113.7"))
def test_lookup_finds_the_smallest_network_around_an_address(
    networks: list[Network], address: IPv4Address | IPv6Address
) -> None:
    found = Networks((network_from(str(network)), network.prefixlen) for network in networks).find(str(address))
    assert found == smallest_prefix_around(networks, address)
    number = number_of(str(address))
    around = [network.prefixlen for network in networks if number and network_from(str(network)).has(number)]
    assert found == max(around, default=None)


@given(st.lists(V4, max_size=20), BITS)
def test_ipv4_mapped_address_is_found_like_the_ipv4_address(networks: list[Network], bits: bytes) -> None:
    plain = IPv4Address(bits[:4])
    found = Networks((network_from(str(network)), str(network)) for network in networks)
    assert found.find(f"::ffff:{plain}") == found.find(str(plain))


@given(st.text(max_size=70))
def test_lookup_of_text_that_is_no_address_finds_nothing(text: str) -> None:
    everything = Networks([(network_from("0.0.0.0/0"), True), (network_from("::/0"), True)])
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        assert everything.find(text) is None


def as_ipaddress_reads(text: str) -> Network | None:
    """The network in ``text``, as IPv4 if it is an IPv4-mapped one; ``None`` if it is no network."""
    try:
        network = ip_network(text.strip(), strict=False)
    except ValueError:
        return None
    if isinstance(network, IPv6Network) and network.subnet_of(MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


NEARLY = st.text("0123456789abcdefF:./% ", max_size=45)
CHANGED = st.builds(
    lambda network, at, text: f"{str(network)[: at % 20]}{text}{str(network)[at % 20 :]}",
    V4 | V6,
    st.integers(0, 40),
    st.text("0123456789abcdef:./ ", max_size=2),
)
MASKED = st.builds(lambda network, form: network.with_hostmask if form else network.with_netmask, V4, st.booleans())


@example("::1.2.3.4")
@given((V4 | V6).map(str) | NEARLY | CHANGED | MASKED)
def test_network_is_read_and_shown_like_ipaddress_does(text: str) -> None:
    expected = as_ipaddress_reads(text)
    if expected is None or "%" in text:
        with pytest.raises(ConfigurationError):
            network_from(text)
        return

    found = network_from(text)

    assert str(found) == str(expected)
    assert (found.version, found.prefixlen, found.address) == (
        expected.version,
        expected.prefixlen,
        str(expected.network_address),
    )
    assert found.num_addresses == expected.num_addresses
    assert network_from(str(found)) == found


@given(st.lists(V4, max_size=20) | st.lists(V6, max_size=20))
def test_addresses_of_overlapping_networks_are_counted_once(networks: list[Any]) -> None:
    counted = addresses_in(network_from(str(network)) for network in networks if not in_mapped(network))
    apart = collapse_addresses(network for network in networks if not in_mapped(network))
    assert counted == sum(each.num_addresses for each in apart)


def in_mapped(network: Network) -> bool:
    return isinstance(network, IPv6Network) and network.subnet_of(MAPPED)


@pytest.mark.parametrize(
    "text",
    [
        *("", "203.0.113", "203.0.113.0/33", "010.0.0.1", "fe80::1%eth0", "::/129", f"203.0.113.0/24{' ' * 60}x"),
        *("1\0", "\ud800", 5, None),
    ],
)
def test_text_that_is_not_a_network_is_an_error(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="network"):
        network_from(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("203.0.113.0/24", "203.0.113.0/24"),
        ("ip:203.0.113.7", "203.0.113.7"),
        *((each, "203.0.113.7") for each in ("203.0.113.7:80", "ip:203.0.113.7:80", "[::ffff:203.0.113.7]:80")),
        *((each, "2001:db8::1") for each in ("[2001:db8::1]:443", "ip:[2001:db8::1]:443")),
        ("user:42", "user:42"),
        ("user:a:b", "user:a:b"),
        ("api_key:2001:db8::1", "api_key:2001:db8::1"),
        ("api_key:203.0.113.7:80", "api_key:203.0.113.7:80"),
    ],
)
def test_entry_names_a_network_or_a_subject_and_the_port_of_an_address_is_left_out(text: str, shown: str) -> None:
    assert str(Who.parse(text)) == shown


def test_quoted_name_may_be_as_long_as_the_name_it_stands_for() -> None:
    longest = f"user:{chr(0x202E) * 1995}"
    assert Who.parse(quoted(longest)) == Who.parse(longest)
    with pytest.raises(ConfigurationError, match="at most 2000 characters"):
        Who.parse(quoted(f"{longest}x"))


@pytest.mark.parametrize(
    "text",
    ["", "everyone", "default:", "User:42", "IP:192.0.2.1", "ip:nowhere", "user+ip:42", "a b:c", "1.2.3.4:80/24", 42],
)
def test_entry_that_names_no_client_is_an_error_with_the_whole_entry(text: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{re.escape(repr(text))}: .*203\.0\.113"):
        Who.parse(text)
