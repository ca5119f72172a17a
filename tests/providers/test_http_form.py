"""Forms: byte for byte at the other end, and failing with the same evidence as JSON does."""

import asyncio
from datetime import timedelta

import pytest

from providers.errors import Fate, ProviderError
from providers.http import Part, make_client, make_looking_client, request
from providers.sandbox import forms

PARTS = [
    Part("text", "größer\r\n--x\r\n".encode()),
    Part("files", bytes(range(256)) * 4, "a.mp3", "audio/mpeg"),
    Part("files", b"\r\n\r\n--", 'b".wav', "audio/wav"),
    Part("flag", b"true"),
]
AMPLE = timedelta(seconds=5)


async def post(url, form, client=make_client):
    async with client() as used:
        return await request(used, "POST", url, deadline=AMPLE, headers={"x-key": "k"}, form=form)


def sent(raw_server, form):
    seen = []

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        seen.append((fields, await reader.readexactly(int(fields["content-length"]))))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async def main():
        async with raw_server(answer) as url:
            await post(url, form)

    asyncio.run(main())
    return seen[0]


def test_every_byte_arrives(raw_server):
    fields, body = sent(raw_server, PARTS)
    assert fields["content-type"].startswith("multipart/form-data; boundary=")
    assert "transfer-encoding" not in fields
    form = forms.read(fields["content-type"], body)
    assert form.fields == {"text": ["größer\r\n--x\r\n"], "flag": ["true"]}
    assert form.files == {"files": [bytes(range(256)) * 4, b"\r\n\r\n--"]}
    assert b'name="files"; filename="a.mp3"\r\nContent-Type: audio/mpeg\r\n' in body


def test_fields_alone_are_a_form_too(raw_server):
    fields, body = sent(raw_server, [Part("a", b"1"), Part("a", b"2")])
    assert forms.read(fields["content-type"], body).fields == {"a": ["1", "2"]}


@pytest.mark.parametrize("after", [0, 100])
def test_a_connection_lost_after_a_form_left_is_ambiguous(raw_server, reset_connection, after):
    async def answer(reader, writer):
        await reader.readexactly(10 + after)
        reset_connection(writer)

    async def main():
        async with raw_server(answer) as url:
            with pytest.raises(ProviderError) as caught:
                await post(url, PARTS)
        return caught.value

    assert asyncio.run(main()).fate is Fate.AMBIGUOUS


def test_a_form_that_never_left_is_not_sent():
    with pytest.raises(ProviderError) as caught:
        asyncio.run(post("http://127.0.0.1:1/x", PARTS))
    assert caught.value.fate is Fate.NOT_SENT


def test_a_form_needs_a_client_with_evidence():
    with pytest.raises(TypeError, match="make_client"):
        asyncio.run(post("http://127.0.0.1:1/x", PARTS, client=make_looking_client))


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\ncut'),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nno name\r\n--x--"),
    ],
)
def test_the_sandbox_reads_no_broken_form(content_type, body):
    assert forms.read(content_type, body) is None
