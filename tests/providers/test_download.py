"""Downloads: what may be asked, where it is asked, and what counts as whole."""

import asyncio
import contextlib
import hashlib
import io
import ssl
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote_from_bytes

import httpx
import pytest

from providers import download
from providers.contract import Account, Media
from providers.download import fetch
from providers.errors import DownloadError
from providers.http import make_client
from providers.registry import get_kind
from providers.sandbox import files

HOSTS = ("replicate.delivery", ".replicate.delivery")
PUBLIC, PRIVATE = "93.184.216.34", "169.254.169.254"
PNG = files.png("d" * 26, 0)
URL = "https://x.replicate.delivery/p/out.png?sig=canary"
AMPLE = timedelta(seconds=10)


def pull(url, transport=None, *, kind="image", hosts=HOSTS, authorised=False, **more):
    """Run one fetch; returns what it says and what it wrote."""
    out = io.BytesIO()

    async def main():
        async with make_client(transport=transport) as client:
            media = Media(url, kind, authorised)
            given = {"max_bytes": 10_000_000, "deadline": AMPLE, **more}
            return await fetch(client, media, out, allowed_hosts=hosts, **given)

    return asyncio.run(main()), out.getvalue()


def refused(url, transport=None, **more):
    with pytest.raises(DownloadError) as caught:
        pull(url, transport, **more)
    assert "canary" not in str(caught.value)
    return caught.value


class World(httpx.MockTransport):
    """A network without sockets: notes each request, answers from a table by host and path."""

    def __init__(self, answers):
        self.requests = []
        self.answers = answers
        super().__init__(self.answer)

    def answer(self, request):
        self.requests.append(request)
        found = self.answers[f"{request.headers['host']}{request.url.path}"]
        if isinstance(found, Exception):
            raise found
        # A new response each time, and one that was not read yet, as from a socket.
        return httpx.Response(found.status_code, headers=found.headers, stream=found.stream)

    @property
    def connected(self):
        return [request.url.host for request in self.requests]


def names(**table):
    """A resolver that serves each host's answers in turn, and the last of them for ever."""
    turns = {host.replace("_", "."): list(answers) for host, answers in table.items()}

    async def resolver(host, _port):
        answers = turns.get(host, [[PUBLIC]])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return resolver


def png(**more):
    return httpx.Response(200, content=PNG, **more)


def test_the_connection_goes_to_the_checked_address_under_the_asked_name():
    world = World({"x.replicate.delivery/p/out.png": png()})
    fetched, written = pull(URL, world, resolver=names())
    assert written == PNG
    assert (fetched.sha256, fetched.size) == (hashlib.sha256(PNG).hexdigest(), len(PNG))
    assert (fetched.content_type, fetched.extension) == ("image/png", "png")
    (request,) = world.requests
    assert (request.url.host, request.extensions["sni_hostname"]) == (PUBLIC, "x.replicate.delivery")
    assert (request.headers["accept-encoding"], request.headers["connection"]) == ("identity", "close")
    assert request.url.query == b"sig=canary"


def test_a_second_dns_answer_is_never_asked_for():
    world = World({"x.replicate.delivery/p/out.png": png()})
    rebinding = names(x_replicate_delivery=[[PUBLIC], [PRIVATE]])
    pull(URL, world, resolver=rebinding)
    assert world.connected == [PUBLIC]
    assert refused(URL, world, resolver=rebinding).code == "result_url_forbidden"
    assert world.connected == [PUBLIC]


@pytest.mark.parametrize(
    "addresses",
    [
        [PRIVATE],
        [PUBLIC, "10.0.0.1"],
        ["127.0.0.1", PUBLIC],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["fd00:ec2::254"],
        ["fe80::1%eth0"],
    ],
)
def test_one_address_that_is_not_public_spoils_the_host(addresses):
    world = World({})
    error = refused(URL, world, resolver=names(x_replicate_delivery=[addresses]))
    assert (error.code, error.retryable) == ("result_url_forbidden", False)
    assert world.requests == []


def test_the_next_address_is_tried_when_the_first_refuses():
    class FirstIsDown(World):
        def answer(self, request):
            if request.url.host == "2606:4700::1":
                self.requests.append(request)
                raise httpx.ConnectError("unreachable")
            return super().answer(request)

    world = FirstIsDown({"x.replicate.delivery/p/out.png": png()})
    pull(URL, world, resolver=names(x_replicate_delivery=[["2606:4700::1", PUBLIC]]))
    assert world.connected == ["2606:4700::1", PUBLIC]


@pytest.mark.parametrize(
    "url",
    [
        "http://replicate.delivery/x",
        "https://replicate.delivery:8443/x",
        "https://replicate.delivery./x",
        "https://evil.example/x",
        "https://evilreplicate.delivery/x",
        "https://replicate.delivery.evil.example/x",
        "https://.replicate.delivery/x",
        "https://user:pw@replicate.delivery/x",
        "https://replicate.delivery@evil.example/x",
        "https://replicate.delivery\\@evil.example/x",
        "https://replicate.delivery/x#frag",
        "https://127.0.0.1/x",
        "https://2130706433/x",
        "https://0x7f.1/x",
        "https://[::1]/x",
        "https://[::ffff:169.254.169.254]/x",
        "https://localhost/x",
        "https:///x",
        "https://",
        "file:///etc/passwd",
        "ftp://replicate.delivery/x",
        "gopher://replicate.delivery/x",
        "//replicate.delivery/x",
        "replicate.delivery/x",
        "",
        "https://replicate.delivery/" + "x" * 9000,
        "https://replicate.delivery:99999/x",
        "https://replicate.delivery/\x00",
        "https://\uff52eplicate.delivery.evil/x",
    ],
)
def test_a_url_that_must_not_be_asked(url):
    world = World({})
    error = refused(url, world, resolver=names())
    assert (error.code, error.retryable) == ("result_url_forbidden", False)
    assert world.requests == []


def test_redirects_are_followed_where_the_rules_hold():
    world = World(
        {
            "x.replicate.delivery/p/out.png": httpx.Response(302, headers={"location": "/q"}),
            "x.replicate.delivery/q": httpx.Response(307, headers={"location": "https://y.replicate.delivery/r"}),
            "y.replicate.delivery/r": httpx.Response(301, headers={"location": "https://replicate.delivery/s"}),
            "replicate.delivery/s": png(),
        }
    )
    pull(URL, world, authorised=True, authorization="Bearer canary", resolver=names())
    assert ["authorization" in request.headers for request in world.requests] == [True, True, False, False]


@pytest.mark.parametrize(
    "location",
    [
        "https://evil.example/x",
        "http://x.replicate.delivery/x",
        "https://169.254.169.254/latest/meta-data/",
        "http://169.254.169.254/latest/meta-data/",
        "https://inside.replicate.delivery/x",
        "file:///etc/passwd",
        "//evil.example/x",
    ],
)
def test_a_redirect_is_checked_like_the_first_url(location):
    world = World({"x.replicate.delivery/p/out.png": httpx.Response(302, headers={"location": location})})
    error = refused(URL, world, resolver=names(inside_replicate_delivery=[["10.0.0.7"]]))
    assert (error.code, error.retryable) == ("result_url_forbidden", False)
    assert len(world.requests) == 1


def test_a_redirect_to_no_url_leads_nowhere():
    world = World({"x.replicate.delivery/p/out.png": httpx.Response(302, headers={"location": "https://[::1"})})
    assert refused(URL, world, resolver=names()).code == "result_unavailable"
    assert len(world.requests) == 1


def test_a_fourth_redirect_is_one_too_many():
    world = World({"x.replicate.delivery/p/out.png": httpx.Response(302, headers={"location": URL})})
    assert refused(URL, world, resolver=names()).code == "result_url_forbidden"
    assert len(world.requests) == 4


@pytest.mark.parametrize(
    ("authorised", "given", "sent"), [(True, "Bearer k", "Bearer k"), (False, "Bearer k", None), (True, None, None)]
)
def test_authorization_is_sent_only_when_both_say_so(authorised, given, sent):
    world = World({"x.replicate.delivery/p/out.png": png()})
    pull(URL, world, authorised=authorised, authorization=given, resolver=names())
    assert world.requests[0].headers.get("authorization") == sent


@pytest.mark.parametrize(
    ("status", "code", "retryable", "gone"),
    [
        (403, "result_gone", True, True),
        (404, "result_gone", True, True),
        (410, "result_gone", True, True),
        (400, "result_refused", False, False),
        (204, "result_refused", False, False),
        (206, "result_refused", False, False),
        (401, "result_unavailable", True, False),
        (429, "result_unavailable", True, False),
        (500, "result_unavailable", True, False),
        (503, "result_unavailable", True, False),
    ],
)
def test_a_status_says_whether_to_come_back(status, code, retryable, gone):
    error = refused(URL, World({"x.replicate.delivery/p/out.png": httpx.Response(status)}), resolver=names())
    assert (error.code, error.retryable, error.gone) == (code, retryable, gone)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (httpx.ConnectError("x"), "result_unreachable"),
        (httpx.ConnectTimeout("x"), "result_unreachable"),
        (httpx.ReadTimeout("x"), "result_unavailable"),
        (httpx.RemoteProtocolError("x"), "result_unavailable"),
    ],
)
def test_a_broken_network_is_retryable(problem, code):
    error = refused(URL, World({"x.replicate.delivery/p/out.png": problem}), resolver=names())
    assert (error.code, error.retryable) == (code, True)


class Drops(httpx.AsyncByteStream):
    """A file that comes a drop at a time: each well within the time for a read, and never to an end."""

    async def __aiter__(self):
        yield PNG[:64]
        while True:
            await asyncio.sleep(0.01)
            yield b"x"


def test_a_file_that_comes_in_drops_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(download, "PART_SECONDS", 0.3)
    drops = httpx.Response(200, stream=Drops())
    error = refused(
        URL, World({"x.replicate.delivery/p/out.png": drops}), resolver=names(), deadline=timedelta(hours=1)
    )
    assert (error.code, error.retryable) == ("result_timeout", True)


def test_each_part_has_its_own_time(monkeypatch):
    """Slower in all than one part may be, and never slow: it arrives."""

    class Parts(httpx.AsyncByteStream):
        async def __aiter__(self):
            yield PNG
            for _ in range(6):
                await asyncio.sleep(0.2)
                yield bytes(download.PART_BYTES)

    monkeypatch.setattr(download, "PART_SECONDS", 1.0)
    world = World({"x.replicate.delivery/p/out.png": httpx.Response(200, stream=Parts())})
    fetched, _ = pull(URL, world, resolver=names())
    assert fetched.size == len(PNG) + 6 * download.PART_BYTES


def test_a_name_that_is_looked_up_for_ever_is_retryable(monkeypatch):
    async def never(_host, _port):
        await asyncio.sleep(3600)

    monkeypatch.setattr(download, "RESOLVE_SECONDS", 0.1)
    error = refused(URL, World({}), resolver=never, deadline=timedelta(hours=1))
    assert (error.code, error.retryable) == ("result_unreachable", True)


def test_an_unknown_host_is_retryable():
    async def nobody(_host, _port):
        raise OSError

    assert refused(URL, World({}), resolver=nobody).code == "result_unreachable"


def test_compressed_bytes_are_not_unpacked():
    response = httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"\x1f\x8b"))
    assert (
        refused(URL, World({"x.replicate.delivery/p/out.png": response}), resolver=names()).code == "result_wrong_type"
    )


@pytest.mark.parametrize(
    ("content", "kind", "fits"),
    [
        (PNG, "image", True),
        (PNG, "file", True),
        (PNG, "video", False),
        (files.mp4("a" * 26), "video", True),
        (files.mp4("a" * 26), "audio", True),
        (files.mp4("a" * 26), "image", False),
        (b"<html>Just a moment</html>", "image", False),
        (b"<html>Just a moment</html>", "file", False),
        (b'{"detail":"gone"}', "video", False),
        (b'{"detail":"gone"}', "file", True),
        (b"#EXTM3U\nhttp://169.254.169.254/", "video", False),
        (b"#EXTM3U\nhttp://169.254.169.254/", "file", False),
        (b"\0\1\2\3", "image", False),
        (b"\0\1\2\3", "file", True),
    ],
)
@pytest.mark.parametrize("inline", [False, True])
def test_a_file_is_what_its_bytes_say(content, kind, fits, inline):
    response = httpx.Response(200, content=content, headers={"content-type": "image/png"})
    url = f"data:image/png,{quote_from_bytes(content)}" if inline else URL
    world = World({"x.replicate.delivery/p/out.png": response})
    if fits:
        assert pull(url, world, kind=kind, resolver=names())[1] == content
    else:
        error = refused(url, world, kind=kind, resolver=names())
        assert (error.code, error.retryable) == ("result_wrong_type", False)


@pytest.mark.parametrize("url", ["data:image/png;base64,!!!", "data:image/png;base64", "data:image/png;base64,AAA"])
def test_a_data_url_that_is_none(url):
    assert refused(url).code == "result_wrong_type"


def test_a_data_url_is_capped_and_may_be_empty():
    assert refused("data:image/png;base64,", max_bytes=10).code == "result_empty"
    assert refused("data:," + "x" * 100, kind="file", max_bytes=10).code == "result_too_large"
    assert refused("data:," + "x" * 11, kind="file", max_bytes=10).code == "result_too_large"
    assert pull("data:," + "%41" * 10, kind="file", max_bytes=10)[1] == b"A" * 10


def made(sandbox, account, make_call):
    """A finished prediction in the sandbox, and its one file."""
    kind = get_kind("replicate-prediction").provider
    request = {"model": "acme/draw", "input": {}}

    async def main():
        async with make_client() as client:
            call = make_call(request)
            task_id = await kind.create(client, account, call)
            return task_id, (await kind.poll(client, account, call, task_id)).media[0]

    return asyncio.run(main())


def test_the_sandbox_serves_whole_files(sandbox, replicate_account, make_call):
    task_id, media = made(sandbox, replicate_account, make_call)
    fetched, written = pull(media.url, insecure_hosts={sandbox.netloc})
    assert written == files.png(task_id, 0)
    assert fetched.sha256 == hashlib.sha256(written).hexdigest()
    assert refused(media.url).code == "result_url_forbidden"
    assert refused(media.url, insecure_hosts={"127.0.0.1:1"}).code == "result_url_forbidden"


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9, 0.99, 0.9999])
def test_a_cut_transfer_is_never_taken_for_the_whole(sandbox, replicate_account, make_call, fraction):
    _, media = made(sandbox, replicate_account, make_call)
    sandbox.script(
        {"rules": [{"when": {"route": "download", "nth": [1]}, "do": {"download": "truncated", "fraction": fraction}}]}
    )
    error = refused(media.url, insecure_hosts={sandbox.netloc})
    assert (error.code, error.retryable) == ("result_truncated", True)
    assert pull(media.url, insecure_hosts={sandbox.netloc})[0].size > 0


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ({"download": "wrong_type"}, "result_wrong_type"),
        ({"download": "gone"}, "result_gone"),
        ({"refuse": "drop"}, "result_unavailable"),
    ],
)
def test_faults_of_the_file_route(sandbox, replicate_account, make_call, action, code):
    _, media = made(sandbox, replicate_account, make_call)
    sandbox.script({"rules": [{"when": {"route": "download"}, "do": action}]})
    assert refused(media.url, insecure_hosts={sandbox.netloc}).code == code


def test_results_are_gone_after_their_life(sandbox, replicate_account, make_call):
    sandbox.script({"defaults": {"result_life": 60}})
    _, media = made(sandbox, replicate_account, make_call)
    sandbox.advance(61)
    assert refused(media.url, insecure_hosts={sandbox.netloc}).gone


def served(raw_server, handler, **more):
    async def main():
        async with raw_server(handler) as url, make_client() as client:
            given = {"max_bytes": 100_000, "deadline": AMPLE, **more}
            media, netloc = Media(f"{url}/x", "file"), url.removeprefix("http://")
            with pytest.raises(DownloadError) as caught:
                await fetch(client, media, io.BytesIO(), allowed_hosts=(), insecure_hosts={netloc}, **given)
            return caught.value

    return asyncio.run(main())


@pytest.mark.parametrize(
    "declared", [b"content-length: 999999999", b"transfer-encoding: chunked", b"connection: close"]
)
def test_the_cap_holds_whatever_is_declared(raw_server, declared):
    sent = []

    async def flood(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + declared + b"\r\n\r\n")
        part = b"\0" * 10_000
        while True:
            writer.write(b"2710\r\n" + part + b"\r\n" if b"chunked" in declared else part)
            sent.append(len(part))
            await writer.drain()

    error = served(raw_server, flood)
    assert (error.code, error.retryable) == ("result_too_large", False)
    assert sum(sent) < 50_000_000


def test_a_drip_ends_at_the_deadline(raw_server):
    async def drip(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n\0\0")
        await reader.read()

    error = served(raw_server, drip, deadline=timedelta(seconds=0.3))
    assert (error.code, error.retryable) == ("result_timeout", True)


def test_an_empty_file_is_none(raw_server):
    async def empty(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    assert served(raw_server, empty).code == "result_empty"


def test_a_key_in_the_account_stays_out_of_reprs():
    shown = repr((Account("a", "https://x", "canary"), Media(URL, "image")))
    assert "canary" not in shown


@pytest.mark.parametrize(("host", "fits"), [("media.test", True), ("other.test", False)])
def test_tls_is_checked_against_the_name_not_the_address(host, fits):
    pem = Path(__file__).parent / "data" / "media.test.pem"
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(pem)
    seen = []
    server_side.sni_callback = lambda _socket, name, _context: seen.append(name)

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(PNG) + PNG)
        writer.close()

    async def local(_host, _port):
        return ["127.0.0.1"]

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_side)
        port = server.sockets[0].getsockname()[1]
        trust = ssl.create_default_context(cafile=str(pem))
        async with server, make_client(transport=httpx.AsyncHTTPTransport(verify=trust)) as client:
            media, out = Media(f"https://{host}:{port}/x.png", "image"), io.BytesIO()
            given = {"allowed_hosts": (), "insecure_hosts": {f"{host}:{port}"}, "max_bytes": 10**6, "deadline": AMPLE}
            await fetch(client, media, out, resolver=local, **given)
            return port

    if fits:
        port = asyncio.run(main())
        assert seen[0] == host
        assert f"host: {host}:{port}".encode() in seen[1].lower()
    else:
        with pytest.raises(DownloadError, match="result_unreachable"):
            asyncio.run(main())
        assert seen == [host]
