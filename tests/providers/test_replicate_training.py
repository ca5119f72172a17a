"""The training kind against the sandbox, and what its objects mean."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from providers.contract import Account, Call, Failed, Missing, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import make_client, make_looking_client
from providers.registry import get_kind
from providers.replicate_find import search
from providers.replicate_training import goes_to, trained
from providers.webhooks import sign

KIND = get_kind("replicate-training").provider
VERSION = "acme/trainer:" + "a" * 64
LORA = {"version": VERSION, "destination": "me/fox", "input": {"images": "https://example.com/x.zip", "steps": 10}}
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


def run(step, client=make_client):
    async def main():
        async with client() as used:
            return await step(used)

    return asyncio.run(main())


def call_of(request=LORA, callback_url=None, **changes):
    request = {**request, **changes}
    return Call(request, KIND.handle(request), "k1", datetime.now(UTC), callback_url)


def create(account, call):
    return run(lambda client: KIND.create(client, account, call))


def poll(account, call, task_id):
    bare = Call({}, call.handle, "", call.started_at)
    return run(lambda client: KIND.poll(client, account, bare, task_id), make_looking_client)


def find(account, call):
    return list(run(lambda client: KIND.find(client, account, call), make_looking_client))


def lost(account, call):
    with pytest.raises(ProviderError) as caught:
        create(account, call)
    return caught.value


def test_a_training_leaves_a_version(sandbox, replicate_account):
    call = call_of(callback_url="http://127.0.0.1:9/hook?call=1")
    task_id = create(replicate_account, call)
    (billed,) = sandbox.bill()
    assert billed["path"] == f"/v1/models/acme/trainer/versions/{'a' * 64}/trainings"
    assert (billed["kind"], billed["task_id"], billed["input"]) == ("replicate-training", task_id, LORA["input"])
    assert billed["webhook"].endswith("?call=1")
    found = poll(replicate_account, call, task_id)
    assert found.value["version"].startswith("me/fox:")
    assert found.value["weights"].endswith("/weights.tar")
    assert found.media == ()
    assert "predict_time" in found.usage


def test_it_runs_fails_and_is_cancelled(sandbox, replicate_account):
    sandbox.script({"defaults": {"run_seconds": 60}})
    call = call_of()
    task_id = create(replicate_account, call)
    assert isinstance(poll(replicate_account, call, task_id), Running)

    def cancel():
        return run(lambda client: KIND.cancel(client, replicate_account, call, task_id))

    assert cancel() is True
    assert cancel() is True
    assert poll(replicate_account, call, task_id).cancelled
    sandbox.script({"defaults": {"fail": "CUDA out of memory"}})
    found = poll(replicate_account, call, create(replicate_account, call))
    assert (found.code, found.message) == ("task_failed", "CUDA out of memory")
    assert run(lambda client: KIND.cancel(client, replicate_account, call, "unknown")) is False


@pytest.mark.parametrize(
    ("defaults", "code"),
    [
        ({"aborted": True}, "task_cancelled"),
        ({"fail": "NSFW content detected"}, "content_policy"),
        ({"output": {"version": "someone/else:" + "b" * 64}}, "result_wrong_type"),
        ({"output": {"weights": "https://x/w.tar"}}, "result_wrong_type"),
        ({"output": "https://x/w.tar"}, "result_wrong_type"),
    ],
)
def test_every_bad_end_fails(sandbox, replicate_account, defaults, code):
    sandbox.script({"defaults": defaults})
    call = call_of()
    found = poll(replicate_account, call, create(replicate_account, call))
    assert isinstance(found, Failed)
    assert found.code == code


def test_a_success_that_shows_nothing_yet_is_looked_at_again(sandbox, replicate_account):
    sandbox.script({"defaults": {"succeed_without_output": True}})
    call = call_of()
    task_id = create(replicate_account, call)
    with pytest.raises(ProviderError, match="output_missing"):
        poll(replicate_account, call, task_id)


def test_unknown_ids_and_new_words(sandbox, replicate_account):
    call = call_of()
    assert poll(replicate_account, call, "unknown") == Missing()
    sandbox.script({"defaults": {"word": "queued"}})
    assert poll(replicate_account, call, create(replicate_account, call)).known is False
    with pytest.raises(ProviderError, match="request_unsendable"):
        poll(replicate_account, call, "../predictions")


@pytest.mark.parametrize("fault", ["drop", "cut", {"status": 502, "body": "<html>"}, {"status": 201, "body": {}}])
def test_a_lost_create_is_found_by_what_was_asked(sandbox, replicate_account, fault):
    call = call_of()
    sandbox.script({"defaults": {"accept_then": fault, "run_seconds": 60}})
    assert lost(replicate_account, call).fate is Fate.AMBIGUOUS
    assert sandbox.totals()["replicate-training"] == 1
    assert find(replicate_account, call) == [sandbox.bill()[0]["task_id"]]


def test_only_its_own_is_found(sandbox, replicate_account):
    task_id = create(replicate_account, call_of())
    for other in ({"destination": "me/cat"}, {"input": {"steps": 11}}, {"version": "acme/trainer:" + "b" * 64}):
        assert find(replicate_account, call_of(**other)) == []
    assert find(Account("other", sandbox.replicate_url, "another-key"), call_of()) == []
    assert find(replicate_account, call_of()) == [task_id]


def test_trainings_and_predictions_do_not_mix(sandbox, replicate_account):
    prediction = get_kind("replicate-prediction").provider
    wish = {"version": VERSION, "input": LORA["input"]}
    asked = Call(wish, prediction.handle(wish), "k", datetime.now(UTC))
    created = run(lambda client: prediction.create(client, replicate_account, asked))
    trained_id = create(replicate_account, call_of())
    assert find(replicate_account, call_of()) == [trained_id]
    assert list(run(lambda client: prediction.find(client, replicate_account, asked))) == [created]
    assert poll(replicate_account, call_of(), created) == Missing()


def test_it_is_found_beyond_the_first_page(sandbox, replicate_account):
    async def main():
        async with make_client() as client:
            first = await KIND.create(client, replicate_account, call_of())
            for number in range(101):
                await KIND.create(client, replicate_account, call_of(destination=f"me/m{number}"))
            return first, await KIND.find(client, replicate_account, call_of())

    first, found = asyncio.run(main())
    assert list(found) == [first]
    assert sandbox.stats()["requests"]["list"] == 2


def test_it_survives_a_restart(sandbox, replicate_account):
    call = call_of()
    task_id = create(replicate_account, call)
    sandbox.stop()
    sandbox.start()
    assert isinstance(poll(replicate_account, call, task_id), Succeeded)
    assert find(replicate_account, call) == [task_id]


@pytest.mark.parametrize(
    ("reply", "code", "fate", "remedy"),
    [
        (
            {"status": 401, "body": {"title": "Unauthenticated", "detail": "x"}},
            "provider_auth_invalid",
            Fate.REJECTED,
            Remedy.OPERATOR,
        ),
        (
            {"status": 402, "body": {"title": "Insufficient credit", "detail": "x"}},
            "provider_credits_exhausted",
            Fate.REJECTED,
            Remedy.OPERATOR,
        ),
        ({"status": 404, "body": {"detail": "no such destination"}}, "model_not_found", Fate.REJECTED, Remedy.CUSTOMER),
        ({"status": 422, "body": {"detail": "x"}}, "request_invalid", Fate.REJECTED, Remedy.CUSTOMER),
        ({"status": 429, "body": {"detail": "resets in ~3s."}}, "rate_limited", Fate.REJECTED, Remedy.THROTTLED),
        ({"status": 500, "body": {"detail": "x"}}, "provider_unavailable", Fate.AMBIGUOUS, Remedy.RETRY),
    ],
)
def test_refusals_keep_their_meaning(sandbox, replicate_account, reply, code, fate, remedy):
    sandbox.script({"defaults": {"reply": reply}})
    error = lost(replicate_account, call_of())
    assert (error.code, error.fate, error.remedy) == (code, fate, remedy)
    assert sandbox.totals()["all"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "acme/trainer"},
        {"version": "a" * 64},
        {"destination": "fox"},
        {"destination": "../x/y"},
        {"input": []},
        {"webhook": "https://x"},
    ],
)
def test_a_wrong_request_never_leaves(sandbox, replicate_account, changes):
    with pytest.raises(ProviderError, match="request_invalid"):
        call_of(**changes)
    assert lost(replicate_account, Call({**LORA, **changes}, {}, "k", datetime.now(UTC))).fate is Fate.NOT_SENT
    assert sandbox.stats()["requests"]["create"] == 0


def test_the_handle_names_all_a_poll_needs():
    assert KIND.handle(LORA) == {"endpoint": "trainings", "target": VERSION, "destination": "me/fox", "output": "model"}


@pytest.mark.parametrize(
    ("output", "value"),
    [
        (
            {"version": "me/fox:1", "weights": "https://replicate.delivery/w.tar"},
            {"version": "me/fox:1", "weights": "https://replicate.delivery/w.tar"},
        ),
        ({"version": "me/fox:1", "weights": "https://replicate.delivery/w.tar?sig=x"}, {"version": "me/fox:1"}),
        ({"version": "me/fox:1", "weights": "https://user:pw@replicate.delivery/w.tar"}, {"version": "me/fox:1"}),
        ({"version": "me/fox:1", "weights": "https://[x"}, {"version": "me/fox:1"}),
        ({"version": "me/fox:1", "weights": None}, {"version": "me/fox:1"}),
        ({"version": "me/fox:1"}, {"version": "me/fox:1"}),
    ],
)
def test_weights_are_kept_only_where_no_secret_is_in_them(output, value):
    assert trained(Succeeded(value=output), "me/fox") == Succeeded(value=value)


@pytest.mark.parametrize(
    ("listed", "is_ours"),
    [
        ({"destination": "me/fox"}, True),
        ({"destination": "me/cat"}, False),
        ({"destination": "me/cat", "output": {"version": "me/fox:1"}}, False),
        ({"output": {"version": "me/fox:1"}}, True),
        ({"output": {"version": "me/cat:1"}}, False),
        ({"destination": None, "output": None}, None),
        ({"output": {"version": 7}}, None),
        ({}, None),
    ],
)
def test_a_destination_tells_whose_it_is(listed, is_ours):
    assert goes_to(listed, "me/fox") is is_ours


def test_one_that_hides_its_destination_is_not_taken_for_ours():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    hidden = {
        "id": "x1",
        "model": "acme/trainer",
        "version": "a" * 64,
        "input": LORA["input"],
        "created_at": at.isoformat(),
    }

    async def page(_query):
        return {"next": None, "results": [hidden]}

    with pytest.raises(ProviderError, match="find_inconclusive"):
        asyncio.run(
            search(
                page,
                handle=KIND.handle(LORA),
                wanted=LORA["input"],
                base_url="https://api.replicate.com/v1",
                started_at=at,
                send_deadline=timedelta(seconds=30),
                collection="trainings",
                belongs=lambda listed: goes_to(listed, "me/fox"),
            )
        )


def test_a_callback_is_verified_and_names_the_training():
    body = json.dumps({"id": "t1", "status": "succeeded"}).encode()
    now = datetime.now(UTC)
    headers = sign(SECRET, "msg_1", int(now.timestamp()), body)
    assert KIND.parse_callback(headers, body, secrets=[SECRET], now=now).task_id == "t1"
    with pytest.raises(ProviderError, match="callback_unverified"):
        KIND.parse_callback(headers, body + b" ", secrets=[SECRET], now=now)
