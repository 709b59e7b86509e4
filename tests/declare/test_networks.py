"""Networks and addresses are read as ``ipaddress`` reads them, and the smallest network around an address is found."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_multilimit import ConfigurationError
from flask_multilimit.declare.networks import Network, Networks, network_from
from flask_multilimit.declare.who import Who

# Few different bits, so that networks lie within each other and addresses in them.
BITS = st.lists(st.sampled_from([0, 1, 2, 127, 128, 255]), min_size=16, max_size=16).map(bytes)
V4 = st.builds(lambda bits, prefix: ip_network((bits[:4], prefix), strict=False), BITS, st.integers(0, 32))
V6 = st.builds(lambda bits, prefix: ip_network((bits, prefix), strict=False), BITS, st.integers(0, 128))
ADDRESSES = BITS.map(lambda bits: ip_address(bits[:4])) | BITS.map(ip_address)


def find_slowly(networks: list[Network], address: IPv4Address | IPv6Address) -> int | None:
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    around = [network for network in networks if address in network]
    return max((network.prefixlen for network in around), default=None)


@given(st.lists(V4 | V6, max_size=30), ADDRESSES)
def test_finds_the_smallest_network_around_an_address(
    networks: list[Network], address: IPv4Address | IPv6Address
) -> None:
    found = Networks((network, network.prefixlen) for network in networks).find(str(address))

    assert found == find_slowly(networks, address)


@given(st.lists(V4, max_size=20), BITS)
def test_a_mapped_address_is_the_ipv4_address_that_it_stands_for(networks: list[Network], bits: bytes) -> None:
    plain = IPv4Address(bits[:4])
    found = Networks((network, str(network)) for network in networks)

    assert found.find(f"::ffff:{plain}") == found.find(str(plain))


@given(st.text(max_size=70))
def test_any_text_is_looked_up_without_an_error(text: str) -> None:
    everything = Networks([(ip_network("0.0.0.0/0"), True), (ip_network("::/0"), True)])
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        assert everything.find(text) is None


@given(V4 | V6)
def test_a_network_is_read_as_ipaddress_reads_it(network: Network) -> None:
    mapped = isinstance(network, IPv6Network) and network.subnet_of(ip_network("::ffff:0:0/96"))  # type: ignore[arg-type]

    assert mapped or network_from(str(network)) == network


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("203.0.113.7", "203.0.113.7/32"),
        (" 203.0.113.7/24 ", "203.0.113.0/24"),
        ("::ffff:203.0.113.7", "203.0.113.7/32"),
        ("::ffff:203.0.113.0/120", "203.0.113.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("2001:db8::1/32", "2001:db8::/32"),
    ],
)
def test_networks_as_people_write_them(text: str, network: str) -> None:
    assert str(network_from(text)) == network


@pytest.mark.parametrize("text", ["", "203.0.113", "203.0.113.0/33", "010.0.0.1", "fe80::1%eth0", "::/129", 5, None])
def test_what_is_no_network_is_an_error(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="network"):
        network_from(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("203.0.113.0/24", "203.0.113.0/24"),
        ("ip:203.0.113.7", "203.0.113.7"),
        ("user:42", "user:42"),
        ("user:a:b", "user:a:b"),
        ("api_key:2001:db8::1", "api_key:2001:db8::1"),
    ],
)
def test_an_entry_is_about_a_network_or_a_subject(text: str, shown: str) -> None:
    assert str(Who.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "everyone", "default:", "ip:nowhere", "user+ip:42", "a b:c", 42])
def test_an_entry_about_nobody_is_an_error(text: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"203\.0\.113"):
        Who.parse(text)
