"""The OpenRouter video kind against the sandbox: what was billed, who saw the key, and what a callback proves."""

import asyncio
import io
from datetime import UTC, datetime, timedelta

import pytest

from providers.contract import Account, Failed, Missing, Running, Succeeded
from providers.download import fetch
from providers.errors import DownloadError, Fate, ProviderError, Remedy
from providers.http import make_client
from providers.registry import get_kind
from providers.sandbox.app import WEBHOOK_SECRET

ENTRY = get_kind("openrouter-video")
KIND = ENTRY.provider
FOX = {"model": "acme/film-1", "prompt": "a red fox", "duration": 5, "aspect_ratio": "16:9"}


def run(step):
    async def main():
        async with make_client() as client:
            return await step(client)

    return asyncio.run(main())


def create(account, call):
    return run(lambda client: KIND.create(client, account, call))


def poll(account, make_call, task_id):
    """As the poller does: without the request, from the handle alone."""
    return run(lambda client: KIND.poll(client, account, make_call({}, handle=KIND.handle(FOX)), task_id))


def lost(account, call):
    with pytest.raises(ProviderError) as caught:
        create(account, call)
    return caught.value


def download(sandbox, account, media, **more):
    """As the importer does. What came, and how it was judged."""

    async def step(client):
        target = io.BytesIO()
        hosts = {sandbox.netloc, f"localhost:{sandbox.port}"}
        names = ("127.0.0.1", "localhost")
        judged = await fetch(
            client,
            media,
            target,
            allowed_hosts=names,
            insecure_hosts=hosts,
            max_bytes=10**6,
            deadline=timedelta(seconds=10),
            authorization=f"Bearer {account.api_key}" if media.authorised else None,
            **more,
        )
        return judged, target.getvalue()

    return run(step)


def test_a_job_is_made_polled_and_fetched(sandbox, openrouter_account, make_call):
    sandbox.script({"defaults": {"run_seconds": 100}})
    task_id = create(openrouter_account, make_call(FOX))
    (billed,) = sandbox.bill()
    assert (billed["kind"], billed["task_id"], billed["path"]) == ("openrouter", task_id, "/api/v1/videos")
    assert billed["input"] == {**FOX, "session_id": "call-key-1"}
    assert poll(openrouter_account, make_call, task_id) == Running(word="pending")
    sandbox.advance(50)
    assert poll(openrouter_account, make_call, task_id) == Running(word="in_progress")
    sandbox.advance(51)
    found = poll(openrouter_account, make_call, task_id)
    assert isinstance(found, Succeeded)
    assert found.usage["cost"] == 0.42
    judged, content = download(sandbox, openrouter_account, found.media[0])
    assert (judged.content_type, judged.size) == ("video/mp4", len(content))


def test_an_own_session_and_the_callback_go_along(sandbox, openrouter_account, make_call):
    url = "https://app.example/hook?call=signed-id"
    create(openrouter_account, make_call({**FOX, "session_id": "mine"}, callback_url=url))
    (billed,) = sandbox.bill()
    assert (billed["webhook"], billed["input"]["session_id"]) == (url, "mine")


@pytest.mark.parametrize("shape", ["relative", "absolute"])
def test_where_to_poll_is_our_own_business(sandbox, openrouter_account, make_call, shape):
    sandbox.script({"defaults": {"polling_url": shape}})
    task_id = create(openrouter_account, make_call(FOX))
    assert isinstance(poll(openrouter_account, make_call, task_id), Succeeded)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"model": ""},
        {"model": "a", "prompt": ""},
        {"model": "a", "duration": 0},
        {"model": "a", "aspect_ratio": "5:4"},
        {"model": "a", "size": "wide"},
        {"model": "a", "callback_url": "https://evil.example"},
        {"model": "a", "previous_job_id": "../x"},
        {"model": "a", "frame_images": [{"image_url": {"url": "file:///etc/passwd"}, "frame_type": "first_frame"}]},
        {"model": "a", "frame_images": [{"image_url": {"url": "https://x/y.png"}, "frame_type": "middle"}]},
        {"model": "a", "session_id": "x" * 257},
    ],
)
def test_a_wrong_request_never_leaves(sandbox, openrouter_account, make_call, request_):
    error = lost(openrouter_account, make_call(request_))
    assert (error.code, error.fate, error.remedy) == ("request_invalid", Fate.NOT_SENT, Remedy.CUSTOMER)
    assert sandbox.stats()["requests"]["create"] == 0


@pytest.mark.parametrize(
    ("do", "code", "fate", "billed"),
    [
        ({"refuse": "drop"}, "connection_lost", Fate.AMBIGUOUS, 0),
        ({"accept_then": "drop"}, "connection_lost", Fate.AMBIGUOUS, 1),
        ({"accept_then": "cut"}, "connection_lost", Fate.AMBIGUOUS, 1),
        ({"accept_then": {"status": 502, "body": "<html>"}}, "provider_unavailable", Fate.AMBIGUOUS, 1),
        ({"accept_then": {"status": 202, "body": {"status": "pending"}}}, "accepted_without_id", Fate.AMBIGUOUS, 1),
        ({"accept_then": {"status": 202, "body": "ok"}}, "accepted_without_id", Fate.AMBIGUOUS, 1),
        ({"accept_then": {"status": 499, "body": {"error": {"code": 499, "message": "x"}}}}, "unexpected_response", Fate.AMBIGUOUS, 1),
        ({"reply": {"status": 502, "body": {"error": {"code": 502, "message": "x"}}}}, "provider_unavailable", Fate.AMBIGUOUS, 0),
        ({"reply": {"status": 402, "body": {"error": {"code": 402, "message": "x"}}}}, "provider_credits_exhausted", Fate.REJECTED, 0),
        ({"reply": {"status": 200, "body": {"error": {"code": 429, "message": "x"}}}}, "rate_limited", Fate.REJECTED, 0),
    ],
)  # fmt: skip
def test_what_a_failed_create_proves(sandbox, openrouter_account, make_call, do, code, fate, billed):
    sandbox.script({"rules": [{"when": {"route": "create"}, "do": do}]})
    error = lost(openrouter_account, make_call(FOX))
    assert (error.code, error.fate) == (code, fate)
    assert len(sandbox.bill()) == billed


@pytest.mark.parametrize(
    ("do", "expected"),
    [
        ({"fail": "Content was flagged by the provider"}, ("content_policy", False)),
        ({"fail": "It broke"}, ("task_failed", False)),
        ({"aborted": True}, ("task_cancelled", True)),
        ({"stopped": True}, ("task_cancelled", True)),
    ],
)
def test_each_end_is_told_apart(sandbox, openrouter_account, make_call, do, expected):
    sandbox.script({"defaults": do})
    found = poll(openrouter_account, make_call, create(openrouter_account, make_call(FOX)))
    assert isinstance(found, Failed)
    assert (found.code, found.cancelled) == expected


def test_a_new_word_keeps_it_running(sandbox, openrouter_account, make_call):
    sandbox.script({"defaults": {"word": "remastering"}})
    found = poll(openrouter_account, make_call, create(openrouter_account, make_call(FOX)))
    assert found == Running(word="remastering", known=False)


def test_an_unknown_job_is_missing_only_by_the_providers_word(sandbox, openrouter_account, make_call):
    assert poll(openrouter_account, make_call, "gen-vid-1-nobody") == Missing()
    task_id = create(Account("other", sandbox.openrouter_url, "another-key"), make_call(FOX))
    assert poll(openrouter_account, make_call, task_id) == Missing()
    sandbox.script({"rules": [{"when": {"route": "poll"}, "do": {"reply": {"status": 404, "body": "<html>"}}}]})
    with pytest.raises(ProviderError, match="unexpected_response"):
        poll(openrouter_account, make_call, "gen-vid-1-nobody")


def test_an_answer_about_another_job_is_not_taken(sandbox, openrouter_account, make_call):
    body = {"id": "gen-vid-other", "status": "completed", "unsigned_urls": ["https://openrouter.ai/x"]}
    sandbox.script({"rules": [{"when": {"route": "poll"}, "do": {"reply": {"status": 200, "body": body}}}]})
    with pytest.raises(ProviderError, match="malformed_response"):
        poll(openrouter_account, make_call, "gen-vid-mine")


def test_a_task_id_that_is_a_path_never_leaves(sandbox, openrouter_account, make_call):
    with pytest.raises(ProviderError, match="request_unsendable"):
        poll(openrouter_account, make_call, "../generation?id=1")
    assert sandbox.stats()["requests"]["poll"] == 0


def test_nothing_is_found_or_cancelled(sandbox, openrouter_account, make_call):
    call = make_call(FOX)
    with pytest.raises(ProviderError, match="find_inconclusive"):
        run(lambda client: KIND.find(client, openrouter_account, call))
    assert run(lambda client: KIND.cancel(client, openrouter_account, call, "gen-vid-1")) is False
    assert (ENTRY.finds_lost, ENTRY.cancels, ENTRY.idempotent_create) == (False, False, False)
    assert sum(sandbox.stats()["requests"].values()) == 0


def test_the_storage_it_redirects_to_sees_no_key(sandbox, openrouter_account, make_call):
    sandbox.script({"defaults": {"content": "redirect"}})
    found = poll(openrouter_account, make_call, create(openrouter_account, make_call(FOX)))
    judged, _ = download(sandbox, openrouter_account, found.media[0])
    assert judged.content_type == "video/mp4"


def test_a_file_without_a_length_is_capped_while_it_comes(sandbox, openrouter_account, make_call):
    sandbox.script({"defaults": {"download": "unsized"}})
    found = poll(openrouter_account, make_call, create(openrouter_account, make_call(FOX)))
    assert download(sandbox, openrouter_account, found.media[0])[0].size > 10_000


def test_content_before_the_end_and_after_its_life(sandbox, openrouter_account, make_call):
    sandbox.script({"defaults": {"run_seconds": 100, "result_life": 60}})
    task_id = create(openrouter_account, make_call(FOX))
    sandbox.advance(101)
    media = poll(openrouter_account, make_call, task_id).media[0]
    assert download(sandbox, openrouter_account, media)
    stranger = Account("x", sandbox.openrouter_url, "another-key")
    with pytest.raises(DownloadError, match="result_gone"):
        download(sandbox, stranger, media)
    sandbox.advance(61)
    with pytest.raises(DownloadError) as caught:
        download(sandbox, openrouter_account, media)
    assert (caught.value.code, caught.value.gone) == ("result_gone", True)


def parse(call):
    headers, body = call
    return KIND.parse_callback(headers, body, secrets=["old", WEBHOOK_SECRET], now=datetime.now(UTC))


def test_a_callback_names_the_job_of_a_lost_create(sandbox, openrouter_account, make_call, receiver):
    sandbox.script({"defaults": {"accept_then": {"status": 502, "body": "<html>"}}})
    lost(openrouter_account, make_call(FOX, callback_url=receiver.url))
    assert parse(receiver.calls.get(timeout=10)).task_id == sandbox.bill()[0]["task_id"]


def test_callbacks_twice_early_and_forged(sandbox, openrouter_account, make_call, receiver):
    call = make_call(FOX, callback_url=receiver.url)
    sandbox.script({"defaults": {"webhook": "twice"}})
    create(openrouter_account, call)
    assert parse(receiver.calls.get(timeout=10)) == parse(receiver.calls.get(timeout=10))
    sandbox.script({"defaults": {"webhook": "early", "run_seconds": 600}})
    task_id = create(openrouter_account, call)
    assert parse(receiver.calls.get_nowait()).task_id == task_id
    for how in ("forged", "unsigned"):
        sandbox.script({"defaults": {"webhook": how}})
        create(openrouter_account, call)
        with pytest.raises(ProviderError, match="callback_unverified"):
            parse(receiver.calls.get(timeout=10))


def test_jobs_outlive_the_sandbox(sandbox, openrouter_account, make_call):
    sandbox.script({"defaults": {"run_seconds": 100}})
    task_id = create(openrouter_account, make_call(FOX))
    sandbox.stop()
    sandbox.start()
    assert poll(openrouter_account, make_call, task_id) == Running(word="pending")
    sandbox.finish(task_id)
    assert isinstance(poll(openrouter_account, make_call, task_id), Succeeded)
