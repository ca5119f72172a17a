"""Every way a request can end without an answer, over real sockets, and what each proves about the money."""

import asyncio
import gc
import logging
import threading
import warnings
from datetime import timedelta

import httpx
import pytest

from providers import http
from providers.errors import Fate, ProviderError, Remedy

SOON = timedelta(seconds=0.4)
AMPLE = timedelta(seconds=10)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture(autouse=True)
def _sockets_that_httpcore_left():
    """A connect that is cancelled half-way leaves its socket to the garbage collector, whose warning would be charged to
    whichever test comes later.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def outcome(url, key, *, deadline=AMPLE, client=None, **more):
    async def main():
        async with client or http.make_client() as used:
            with pytest.raises(ProviderError) as caught:
                await http.request(
                    used, "POST", url, deadline=deadline, headers={"authorization": f"Bearer {key}"}, **more
                )
            return caught.value

    error = asyncio.run(main())
    assert key not in str(error)
    assert key not in repr(error.__cause__)
    return error


def served(raw_server, handler, key, **more):
    """The error that a POST to a server with this handler ends in."""

    async def main():
        async with raw_server(handler) as url, http.make_client() as client:
            with pytest.raises(ProviderError) as caught:
                await http.request(
                    client,
                    "POST",
                    f"{url}/v1/x?sig=s3cr3tsignature",
                    headers={"authorization": f"Bearer {key}"},
                    **{"deadline": AMPLE, "json": {"a": 1}, **more},
                )
            return caught.value

    error = asyncio.run(main())
    assert key not in str(error)
    assert "s3cr3t" not in str(error)
    return error


async def read_request(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


def test_refused_is_not_sent(key):
    error = outcome("http://127.0.0.1:1/x", key)
    assert (error.code, error.fate, error.remedy) == ("connect_failed", Fate.NOT_SENT, Remedy.RETRY)


def test_an_impossible_port_is_not_sent(key):
    error = outcome("http://127.0.0.1:99999/x", key)
    assert (error.code, error.fate) == ("connect_failed", Fate.NOT_SENT)


def test_unknown_host_is_not_sent(key):
    error = outcome("http://nowhere.invalid/x", key)
    assert (error.code, error.fate) == ("connect_failed", Fate.NOT_SENT)


def test_connect_timeout_is_not_sent(full_listener, key, monkeypatch):
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.2)
    error = outcome(full_listener, key)
    assert (error.code, error.fate) == ("connect_timeout", Fate.NOT_SENT)


def test_deadline_while_connecting_is_not_sent(full_listener, key, monkeypatch):
    monkeypatch.setattr(http, "CONNECT_SHARE", 10)
    error = outcome(full_listener, key, deadline=timedelta(seconds=0.2))
    assert (error.code, error.fate) == ("connect_timeout", Fate.NOT_SENT)


def test_failed_tls_is_not_sent(raw_server, key):
    async def plain(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def main():
        async with raw_server(plain) as url, http.make_client() as client:
            with pytest.raises(ProviderError) as caught:
                await http.request(client, "POST", url.replace("http:", "https:"), deadline=AMPLE, headers={})
            return caught.value

    error = asyncio.run(main())
    assert (error.code, error.fate) == ("connect_failed", Fate.NOT_SENT)


def test_silent_tls_is_not_sent(raw_server, key):
    async def silent(reader, writer):
        await reader.read()
        await reader.read()

    async def main():
        async with raw_server(silent) as url, http.make_client() as client:
            with pytest.raises(ProviderError) as caught:
                await http.request(client, "POST", url.replace("http:", "https:"), deadline=SOON, headers={})
            return caught.value

    error = asyncio.run(main())
    assert (error.code, error.fate) == ("connect_timeout", Fate.NOT_SENT)


def test_exhausted_pool_is_not_sent(raw_server, key, monkeypatch):
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.2)

    async def main():
        busy, release = asyncio.Event(), asyncio.Event()

        async def slow(reader, writer):
            await read_request(reader)
            busy.set()
            await release.wait()
            writer.write(OK)

        transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
        async with raw_server(slow) as url, http.make_client(transport=transport) as client:
            first = asyncio.create_task(http.request(client, "POST", url, deadline=AMPLE, headers={}))
            await busy.wait()
            with pytest.raises(ProviderError) as caught:
                await http.request(client, "POST", url, deadline=AMPLE, headers={})
            release.set()
            assert (await first).status == 200
            return caught.value

    error = asyncio.run(main())
    assert (error.code, error.fate) == ("pool_exhausted", Fate.NOT_SENT)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "nonsense", "http://[::1/x"])
def test_no_http_address_is_not_sent(url, key):
    error = outcome(url, key)
    assert (error.code, error.fate, error.remedy) == ("request_unsendable", Fate.NOT_SENT, Remedy.OPERATOR)


def test_a_key_with_a_line_break_is_not_sent_nor_shown(raw_server):
    async def answer(reader, writer):
        await read_request(reader)
        writer.write(OK)

    error = served(raw_server, answer, "secretkey\nx-evil: 1")
    assert (error.code, error.fate) == ("request_unsendable", Fate.NOT_SENT)
    assert "secretkey" not in str(error)


@pytest.mark.parametrize("body", [{"x": float("nan")}, {"x": object()}, {"x": {1, 2}}])
def test_a_body_that_is_no_json_is_not_sent(body, key):
    error = outcome("http://127.0.0.1:1/x", key, json=body)
    assert (error.code, error.fate) == ("request_unsendable", Fate.NOT_SENT)


def test_accept_then_hang_is_ambiguous(raw_server, key):
    async def hang(reader, writer):
        await read_request(reader)
        await reader.read()

    error = served(raw_server, hang, key, deadline=SOON)
    assert (error.code, error.fate) == ("read_timeout", Fate.AMBIGUOUS)


def test_half_a_response_then_silence_is_ambiguous(raw_server, key):
    async def half(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 201 Created\r\ncontent-length: 50\r\n\r\n{")
        await reader.read()

    error = served(raw_server, half, key, deadline=SOON)
    assert (error.code, error.fate) == ("read_timeout", Fate.AMBIGUOUS)


def test_drop_before_the_response_is_ambiguous(raw_server, key):
    async def drop(reader, writer):
        await read_request(reader)

    error = served(raw_server, drop, key)
    assert (error.code, error.fate) == ("connection_lost", Fate.AMBIGUOUS)


def test_reset_before_the_response_is_ambiguous(raw_server, reset_connection, key):
    async def reset(reader, writer):
        await read_request(reader)
        reset_connection(writer)

    error = served(raw_server, reset, key)
    assert (error.code, error.fate) == ("connection_lost", Fate.AMBIGUOUS)


@pytest.mark.parametrize("framing", [b"content-length: 50\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n5\r\nabc"])
@pytest.mark.parametrize("hard", [False, True])
def test_end_amid_the_body_is_ambiguous(raw_server, reset_connection, key, framing, hard):
    async def cut(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 201 Created\r\n" + framing)
        await writer.drain()
        if hard:
            reset_connection(writer)

    error = served(raw_server, cut, key)
    assert (error.code, error.fate) == ("connection_lost", Fate.AMBIGUOUS)


def test_an_answer_that_is_no_http_is_ambiguous(raw_server, key):
    async def babble(reader, writer):
        await read_request(reader)
        writer.write(b"220 mail.example ESMTP\r\n")

    error = served(raw_server, babble, key)
    assert (error.code, error.fate) == ("connection_lost", Fate.AMBIGUOUS)


def test_a_body_that_nobody_reads_is_ambiguous(raw_server, key):
    async def deaf(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.Event().wait()

    error = served(raw_server, deaf, key, deadline=SOON, json={"x": "y" * 30_000_000})
    assert error.fate is Fate.AMBIGUOUS


def test_a_kept_connection_that_the_server_closes_is_ambiguous(raw_server, key):
    async def once(reader, writer):
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)

    async def main():
        async with raw_server(once) as url, http.make_client() as client:
            first = await http.request(client, "POST", url, deadline=AMPLE, headers={}, json={})
            assert first.status == 200
            with pytest.raises(ProviderError) as caught:
                await http.request(client, "POST", url, deadline=AMPLE, headers={}, json={})
            return caught.value

    error = asyncio.run(main())
    assert (error.code, error.fate) == ("connection_lost", Fate.AMBIGUOUS)


def test_a_kept_connection_found_closed_is_not_used(raw_server):
    async def main():
        closed = asyncio.Queue()

        async def once(reader, writer):
            await read_request(reader)
            writer.write(OK)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            closed.put_nowait(True)

        async with raw_server(once) as url, http.make_client() as client:
            for _ in range(3):
                reply = await http.request(client, "POST", url, deadline=AMPLE, headers={}, json={})
                assert reply.json() == {}
                await asyncio.wait_for(closed.get(), 5)

    asyncio.run(main())


def test_a_huge_answer_is_cut_off_and_ambiguous(raw_server, key):
    async def huge(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000)

    error = served(raw_server, huge, key, max_bytes=1000)
    assert (error.code, error.fate, error.status) == ("response_too_large", Fate.AMBIGUOUS, 200)


def test_redirects_are_not_followed_and_cookies_not_kept(raw_server, key):
    seen = []

    async def redirect(reader, writer):
        seen.append(await read_request(reader))
        writer.write(b"HTTP/1.1 302 Found\r\nlocation: /other\r\nset-cookie: a=b; path=/\r\ncontent-length: 0\r\n\r\n")
        await redirect(reader, writer)

    async def main():
        async with raw_server(redirect) as url, http.make_client() as client:
            for _ in range(2):
                reply = await http.request(client, "GET", url, deadline=AMPLE, headers={"authorization": key})
                assert (reply.status, reply.headers["location"]) == (302, "/other")

    asyncio.run(main())
    assert len(seen) == 2
    assert all(b"accept-encoding: identity\r\n" in request.lower() for request in seen)
    assert not any(b"cookie" in request.lower() for request in seen)


def test_cancellation_passes_through(raw_server):
    async def main():
        reached = asyncio.Event()

        async def hang(reader, writer):
            await read_request(reader)
            reached.set()
            await reader.read()

        async with raw_server(hang) as url, http.make_client() as client:
            task = asyncio.create_task(http.request(client, "POST", url, deadline=AMPLE, headers={}))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_urls_are_not_logged(raw_server, caplog, key):
    async def answer(reader, writer):
        await read_request(reader)
        writer.write(OK)

    async def main():
        async with raw_server(answer) as url, http.make_client() as client:
            await http.request(client, "GET", f"{url}/?sig=canary", deadline=AMPLE, headers={"authorization": key})

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())
    assert "canary" not in caplog.text
    assert key not in caplog.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a": [1, "x"]}', {"a": [1, "x"]}),
        (b'{"a": NaN}', None),
        (b'{"a": Infinity}', None),
        (b"<html>", None),
        (b"", None),
        (b"\xff\xfe\x00", None),
        (b"[" * 100_000, None),
        (b"[" * 65 + b"]" * 65, None),
        (b'{"a\\u0000": "b\\u0000c\\ud800"}', {"a\ufffd": "b\ufffdc\ufffd"}),
        (b"1" * 5000, None),
    ],
)
def test_json_is_only_what_postgres_can_hold(body, expected):
    assert http.Reply(200, httpx.Headers(), body).json() == expected


def fetched(raw_server, body, *, status="200 OK", **more):
    async def answer(reader, writer):
        await read_request(reader)
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    async def main():
        async with raw_server(answer) as url, http.make_client() as client:
            return await http.request(client, "GET", url, deadline=timedelta(seconds=60), headers={}, **more)

    return asyncio.run(main())


@pytest.mark.parametrize(("megabytes", "aside"), [(0.01, False), (1, True), (6, True)])
def test_a_large_answer_is_read_once_and_off_the_loop(raw_server, monkeypatch, megabytes, aside):
    readers, read = [], http._parsed
    monkeypatch.setattr(http, "_parsed", lambda body: readers.append(threading.current_thread()) or read(body))
    body = b'{"a":[' + b"0," * int(megabytes * 500_000) + b"0]}"
    reply = fetched(raw_server, body)
    assert reply.json()["a"][-1] == reply.json()["a"][0] == 0
    assert [reader is not threading.main_thread() for reader in readers] == [aside]


def test_what_is_too_large_is_not_read(raw_server):
    assert http.Reply(200, httpx.Headers(), b'"' + b"x" * http.MAX_JSON + b'"').json() is None
    with pytest.raises(ProviderError) as caught:
        fetched(raw_server, b"x" * (http.MAX_REFUSAL + 1), status="500 Oops")
    assert (caught.value.code, caught.value.fate) == ("response_too_large", Fate.AMBIGUOUS)
    assert len(fetched(raw_server, b"x" * (http.MAX_REFUSAL + 1)).body) == http.MAX_REFUSAL + 1


def test_looking_client_refuses_what_may_be_paid_for():
    async def attempt():
        async with http.make_looking_client() as client:
            await http.request(
                client, "POST", "http://127.0.0.1:9/", deadline=timedelta(seconds=1), headers={}, json={}
            )

    with pytest.raises(TypeError, match="POST needs a client"):
        asyncio.run(attempt())
