"""OpenRouter's own Python client against the sandbox: that the fake is true is its word, not ours."""

import httpx
import pytest
from openrouter import OpenRouter, errors

from providers.sandbox import files


@pytest.fixture
def client(sandbox, key):
    with (
        httpx.Client(trust_env=False, follow_redirects=True) as wire,
        OpenRouter(
            api_key=key, server_url=sandbox.openrouter_url, client=wire, retry_config=None, timeout_ms=10_000
        ) as made,
    ):
        yield made


def test_submit_poll_and_content(sandbox, client):
    sandbox.script({"defaults": {"run_seconds": 100}})
    made = client.video_generation.generate(model="acme/film-1", prompt="a red fox", duration=5, aspect_ratio="16:9")
    assert made.status == "pending"
    assert [entry["task_id"] for entry in sandbox.bill()] == [made.id]
    sandbox.advance(50)
    assert client.video_generation.get_generation(job_id=made.id).status == "in_progress"
    sandbox.advance(51)
    done = client.video_generation.get_generation(job_id=made.id)
    assert (done.status, done.usage.cost, done.usage.is_byok) == ("completed", 0.42, False)
    assert len(done.unsigned_urls) == len(done.urls) == 1
    for where in ("here", "redirect"):
        sandbox.script({"defaults": {"content": where}})
        content = client.video_generation.get_video_content(job_id=made.id)
        assert content.read() == files.mp4(made.id)


@pytest.mark.parametrize(
    ("do", "status"),
    [({"fail": "It broke"}, "failed"), ({"aborted": True}, "expired"), ({"stopped": True}, "cancelled")],
)
def test_ends_without_a_result(sandbox, client, do, status):
    sandbox.script({"defaults": do})
    made = client.video_generation.generate(model="acme/film-1", prompt="x")
    found = client.video_generation.get_generation(job_id=made.id)
    assert (found.status, bool(found.error)) == (status, True)


def test_errors_are_those_it_knows(sandbox, client, key):
    with pytest.raises(errors.NotFoundResponseError):
        client.video_generation.get_generation(job_id="gen-vid-1-nobody")
    with pytest.raises(errors.BadRequestResponseError):
        client.video_generation.generate(model="acme/film-1", duration=-1)
    sandbox.script({"defaults": {"run_seconds": 100, "result_life": 60}})
    made = client.video_generation.generate(model="acme/film-1", prompt="x")
    with pytest.raises(errors.ConflictResponseError):
        client.video_generation.get_video_content(job_id=made.id)
    sandbox.advance(161)
    with pytest.raises(errors.GoneResponseError):
        client.video_generation.get_video_content(job_id=made.id)
    for status, error in (
        (402, errors.PaymentRequiredResponseError),
        (429, errors.TooManyRequestsResponseError),
    ):
        reply = {"status": status, "body": {"error": {"code": status, "message": "no"}}}
        sandbox.script({"rules": [{"when": {"route": "create"}, "do": {"reply": reply}}]})
        with pytest.raises(error):
            client.video_generation.generate(model="acme/film-1", prompt="x")


def test_content_comes_as_a_stream_and_an_interrupted_one_breaks(sandbox, client):
    made = client.video_generation.generate(model="acme/film-1", prompt="x")
    sandbox.script({"defaults": {"download": "unsized"}})
    content = client.video_generation.get_video_content(job_id=made.id)
    assert b"".join(content.iter_bytes(4096)) == files.mp4(made.id)
    sandbox.script({"defaults": {"download": "truncated"}})
    with pytest.raises(httpx.RemoteProtocolError):
        client.video_generation.get_video_content(job_id=made.id).read()
