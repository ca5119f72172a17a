"""Where a result may not be fetched from, however it is written, whoever names it, and whatever was said before.

Each place is tried as the file's own address, as an answer of the resolver and as the target of a redirect, under a list of
hosts that would let it pass: what refuses it is what it is. Nothing may be connected to.
"""

import asyncio
import io
import socket
from collections.abc import Sequence
from datetime import timedelta

import httpx
import pytest

from providers.addresses import resolve
from providers.contract import Media
from providers.download import fetch
from providers.errors import DownloadError
from providers.http import make_client
from providers.sandbox import files

NAME = "x.replicate.delivery"
START = f"https://{NAME}/out.png"
HOSTS = ("replicate.delivery", ".replicate.delivery")
PUBLIC = "93.184.216.34"
PNG = files.png("d" * 26, 0)

ADDRESSES = {
    "this host": ["0.0.0.0", "0.1.2.3"],
    "loopback": ["127.0.0.1", "127.0.0.2", "127.255.255.254"],
    "private": ["10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255"],
    "shared": ["100.64.0.1", "100.127.255.254"],
    "link-local": ["169.254.0.1", "169.254.255.254"],
    "metadata": ["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"],
    "documentation": ["192.0.2.1", "198.51.100.7", "203.0.113.9"],
    "benchmarks": ["198.18.0.1", "198.19.255.254"],
    "relays and assignments": ["192.88.99.1", "192.31.196.1", "192.52.193.1", "192.175.48.1", "192.0.0.8"],
    "multicast": ["224.0.0.1", "239.255.255.250"],
    "reserved and broadcast": ["240.0.0.1", "255.255.255.255"],
    "loopback 6": ["::1", "0:0:0:0:0:0:0:1", "::"],
    "compatible": ["::127.0.0.1", "::10.0.0.1", "::a9fe:a9fe"],
    "mapped": ["::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "0:0:0:0:0:ffff:c0a8:1"],
    "translated": ["::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1", "64:ff9b:1::a00:1"],
    "6to4": ["2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:c0a8:101::", "2002:a00:1::5"],
    "teredo": ["2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001::1"],
    "orchid, documentation": ["2001:10::1", "2001:20::1", "2001:db8::1", "3fff::1"],
    "unique local": ["fc00::1", "fd00::1", "fd00:ec2::254", "fd12:3456:789a::1"],
    "link-local 6": ["fe80::1", "fe80::a9fe:a9fe", "febf::1", "fec0::1"],
    "multicast 6": ["ff02::1", "ff05::2", "ff0e::1"],
    "no unicast": ["100::1", "4000::1", "5f00::1", "8000::1"],
}  # fmt: skip
CLOSED = [address for group in ADDRESSES.values() for address in group]
# Other ways to write what is above; the system's resolver understands them.
SPELLINGS = [
    "2130706433", "0x7f000001", "017700000001", "127.1", "127.0.1", "0x7f.1", "0177.0.0.1", "0x7f.0x0.0x0.0x1",
    "00000177.0.0.1", "2852039166", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe", "169.16689662", "10.1", "0xA000001", "192.168.1",
    "0", "0.0", "localhost", "LOCALHOST",
]  # fmt: skip
# No address of ours: refused by what they are, before any name is looked up.
NO_URL_OF_OURS = [
    f"http://{NAME}/x", f"ftp://{NAME}/x", f"file://{NAME}/etc/passwd", "file:///etc/passwd", f"gopher://{NAME}/x",
    f"dict://{NAME}:11211/stat", f"jar:https://{NAME}/x!/y", f"ws://{NAME}/x", "javascript:alert(1)", f"//{NAME}",
    f"https://user@{NAME}/x", f"https://user:pw@{NAME}/x", f"https://{NAME}@evil.example/x",
    f"https://evil.example#@{NAME}/", f"https://{NAME}%40evil.example/x", f"https://evil.example\\@{NAME}/x",
    f"https://{NAME}:80/x", f"https://{NAME}:8443/x", f"https://{NAME}:22/x", f"https://{NAME}:0/x",
    f"https://{NAME}:65536/x", f"https://{NAME}:-1/x", f"https://{NAME}./x", f"https://{NAME}../x", "https://127.0.0.1./x",
    "https://localhost./x", f"https://{NAME}.evil.example/x", "https://evilreplicate.delivery/x", "https://evil.example/x",
    "https://.replicate.delivery/x", "https://x..replicate.delivery/x", "https://*.replicate.delivery/x",
    "https://x.replicate.deliver\u0443/x", "https://x.r\u0435plicate.delivery/x", "https://xn--replicate-8ya.delivery/x",
    "https://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/x", "https://\uff11\uff12\uff17.0.0.1/x", "https://127\u30020\u30020\u30021/x",
    "https://x.replicate.delivery\u200b.evil.example/x", f"https://{NAME}/x#fragment", f"https://{NAME}\x00.evil.example/x",
    f"https://{NAME}\n.evil.example/x", f"https://{NAME}\t/x", f"https:// {NAME}/x", "https://", "https:///x", "https://[::1/x",
    "https://[::1]x/x", "https://[fe80::1%25eth0]/x", "https://[v1.x]/x", "", f"https://{NAME}/" + "x" * 9000,
]  # fmt: skip


# The second is for a location that httpx cannot read: a broken answer, which says nothing about the next.
REFUSED = ("result_url_forbidden", "result_unavailable")


class Wires(httpx.MockTransport):
    """Notes every connection that would be made. The first is answered with a redirect, if there is one to make."""

    def __init__(self, location: str | None = None) -> None:
        self.connected: list[str] = []
        self.location = location
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.connected.append(request.url.host)
        if self.location is not None and len(self.connected) == 1:
            # As bytes: what stands in a header is not checked by whoever sends it.
            return httpx.Response(302, headers=[(b"location", self.location.encode("utf-8", "replace"))])
        return httpx.Response(200, stream=httpx.ByteStream(PNG))


def answering(*turns: Sequence[str]):
    """A resolver that gives each of these answers in turn, and the last one for ever."""
    left = list(turns)

    async def resolver(_host: str, _port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolver


def pull(url: str, wires: httpx.AsyncBaseTransport | None, *, hosts: Sequence[str] = HOSTS, resolver=resolve) -> str:
    """`fetched`, or the code of the refusal."""

    async def main() -> str:
        async with make_client(transport=wires) as client:
            try:
                await fetch(
                    client, Media(url, "image"), io.BytesIO(), allowed_hosts=hosts, max_bytes=10**6,
                    deadline=timedelta(seconds=20), resolver=resolver,
                )  # fmt: skip
            except DownloadError as error:
                return error.code
            return "fetched"

    return asyncio.run(main())


def literal(address: str) -> tuple[str, tuple[str, ...]]:
    """The URL with the address for a host, and a list of hosts that allows it."""
    host = f"[{address}]" if ":" in address else address
    url = f"https://{host}/latest/meta-data/"
    return url, (host.lower(), address.lower(), *HOSTS)


def test_the_matrix_is_large_enough() -> None:
    assert len(set(CLOSED)) >= 70
    assert len(set(CLOSED) | set(SPELLINGS) | set(NO_URL_OF_OURS)) >= 140
    wires = Wires("https://y.replicate.delivery/z")
    assert pull(START, wires, resolver=answering([PUBLIC])) == "fetched", "and what is well is fetched"
    assert wires.connected == [PUBLIC, PUBLIC]


@pytest.mark.parametrize("address", CLOSED + SPELLINGS)
def test_an_address_as_a_host_is_not_connected_to(address: str) -> None:
    wires = Wires()
    url, hosts = literal(address)
    assert pull(url, wires, hosts=hosts) == "result_url_forbidden"
    assert wires.connected == []


@pytest.mark.parametrize("address", CLOSED)
def test_an_address_in_the_resolvers_answer_is_not_connected_to(address: str) -> None:
    for answer in ([address], [PUBLIC, address], [address, PUBLIC], ["2606:4700:4700::1111", PUBLIC, address]):
        wires = Wires()
        assert pull(START, wires, resolver=answering(answer)) == "result_url_forbidden"
        assert wires.connected == []


@pytest.mark.parametrize("address", CLOSED + SPELLINGS)
def test_a_redirect_to_an_address_is_not_followed(address: str) -> None:
    async def both(host: str, port: int) -> Sequence[str]:
        return [PUBLIC] if host == NAME else await resolve(host, port)

    url, hosts = literal(address)
    for location in (url, url.removeprefix("https:"), url.replace("https:", "http:")):
        wires = Wires(location)
        assert pull(START, wires, hosts=hosts, resolver=both) in REFUSED
        assert wires.connected == [PUBLIC], "the one that was asked for, and no other"


@pytest.mark.parametrize("address", CLOSED)
def test_a_name_that_changes_its_answer_is_not_followed_there(address: str) -> None:
    """Public when it is looked up first, and no more when the redirect to the same name is."""
    wires = Wires(f"https://{NAME}/elsewhere")
    assert pull(START, wires, resolver=answering([PUBLIC], [address])) == "result_url_forbidden"
    assert wires.connected == [PUBLIC]
    wires = Wires()
    assert pull(START, wires, resolver=answering([PUBLIC], [address])) == "fetched"
    assert wires.connected == [PUBLIC], "what was checked is what is connected to: there is no second question"


@pytest.mark.parametrize("url", NO_URL_OF_OURS)
def test_a_url_that_is_none_of_ours_is_not_asked(url: str) -> None:
    wires = Wires()
    assert pull(url, wires, resolver=answering([PUBLIC])) == "result_url_forbidden"
    assert wires.connected == []


# A location without a scheme or a host is a place on the host that was asked: that is no other.
ELSEWHERE = [
    url
    for url in NO_URL_OF_OURS
    if ":" in url and not set(url) & set("\t\n\x00") and url not in ("https://", "https:///x")
]


@pytest.mark.parametrize("url", ELSEWHERE)
def test_a_redirect_to_what_is_none_of_ours_is_not_followed(url: str) -> None:
    wires = Wires(url)
    assert pull(START, wires, resolver=answering([PUBLIC])) in REFUSED
    assert wires.connected == [PUBLIC]


def test_nothing_arrives_at_a_listener_on_this_machine() -> None:
    """The same over real sockets, at a port that would be taken: nobody knocks."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "2130706433", "127.1", "[::ffff:127.0.0.1]"):
            for scheme in ("http", "https"):
                assert pull(f"{scheme}://{host}:{port}/x", None, hosts=(host, *HOSTS)) == "result_url_forbidden"
        with pytest.raises(TimeoutError):
            listener.accept()
