"""Addresses a download must not reach, in every dress they are known to wear."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.addresses import is_public, resolve

CLOSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:10.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::",
    "2002:c0a8:101::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "100::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700::1111%lo",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "4000::1",
]
OPEN = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "172.32.0.1",
    "192.0.1.1",
    "2606:4700:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]
NO_ADDRESS = ["", "localhost", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "1.1.1.1:80", " 1.1.1.1"]


@pytest.mark.parametrize("address", CLOSED + NO_ADDRESS)
def test_it_is_closed(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", OPEN)
def test_it_is_open(address):
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_a_dressed_address_is_judged_like_the_naked_one(address):
    naked = is_public(str(address))
    assert is_public(f"::ffff:{address}") == naked
    assert is_public(f"64:ff9b::{address}") == naked


@given(st.ip_addresses())
def test_nothing_public_is_private_by_the_library(address):
    if is_public(str(address)):
        assert not (address.is_private)
        assert not (address.is_loopback)
        assert not (address.is_link_local)
        assert not (address.is_multicast)


@pytest.mark.parametrize("spelling", ["2130706433", "127.1", "0x7f.1", "0177.0.0.1", "127.0.0.1"])
def test_odd_spellings_resolve_to_what_they_are(spelling):
    assert [is_public(address) for address in asyncio.run(resolve(spelling, 443))] == [False]
