from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.deployment.address import Address, check_host, is_host, is_unspecified, parse_address
from fedpbc.errors import InputError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("fleet.example.org:8443", "fleet.example.org", 8443),
        ("localhost:1", "localhost", 1),
        ("my_host-2:65535", "my_host-2", 65535),
        ("10.0.0.1:8443", "10.0.0.1", 8443),
        ("0.0.0.0:443", "0.0.0.0", 443),
        ("[::]:8443", "::", 8443),
        ("[2001:db8::1]:8443", "2001:db8::1", 8443),
    ],
)
def test_host_and_port(text, host, port):
    assert parse_address(text, "server") == Address(host, port)
    assert str(Address(host, port)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fleet.example.org",
        ":8443",
        "fleet.example.org:",
        "fleet.example.org:0",
        "fleet.example.org:65536",
        "fleet.example.org:-1",
        "fleet.example.org:+1",
        "fleet.example.org:８４４３",
        "fleet.example.org: 8443",
        "https://fleet.example.org:8443",
        "fleet.example.org/path:8443",
        "2001:db8::1:8443",
        "[2001:db8::1]",
        "[10.0.0.1]:8443",
        "[fleet.example.org]:8443",
        "[fe80::1%eth0]:8443",
        "10.0.0.256:8443",
        "10.0.1:8443",
        "-fleet.example.org:8443",
        "fleet..example.org:8443",
        "zoë.example.org:8443",
        f"{'a' * 64}.org:8443",
    ],
)
def test_an_invalid_address_is_one_line(text):
    with pytest.raises(InputError) as caught:
        parse_address(text, "fleet.listen")
    assert str(caught.value) == (
        f"fleet.listen is {text!r}, but should be host:port, as fleet.example.org:8443 "
        "or [2001:db8::1]:8443"
    )


def test_only_an_ipv6_host_may_have_brackets():
    assert check_host("[::1]", "host") == check_host("::1", "host") == "::1"
    assert check_host("fleet", "host") == "fleet"
    for wrong in ("[fleet]", "[]", "", "10.0.0.1:8443", "a b"):
        with pytest.raises(InputError, match=r"host is .* a host name or an address"):
            check_host(wrong, "host")


def test_unspecified_addresses():
    assert is_unspecified(parse_address("0.0.0.0:1", "x").host)
    assert is_unspecified(parse_address("[::]:1", "x").host)
    assert not is_unspecified(parse_address("10.0.0.1:1", "x").host)
    assert not is_unspecified(parse_address("fleet:1", "x").host)


@given(
    st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(str),
        st.text("abz059-_.", min_size=1, max_size=12).filter(is_host),
    ),
    st.integers(1, 65535),
)
def test_addresses_survive_a_round_trip(host, port):
    assert parse_address(str(Address(host, port)), "server") == Address(host, port)
