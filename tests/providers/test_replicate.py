"""The Replicate kind against the sandbox: what was billed, and whether it is found again."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from providers.contract import Account, Failed, Missing, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import make_client
from providers.registry import get_kind

KIND = get_kind("replicate-prediction").provider
FOX = {"model": "acme/draw", "input": {"prompt": "a red fox"}}


def run(step):
    """Run `step(client)` with a client of its own."""

    async def main():
        async with make_client() as client:
            return await step(client)

    return asyncio.run(main())


def create(account, call):
    return run(lambda client: KIND.create(client, account, call))


def poll(account, call, task_id):
    return run(lambda client: KIND.poll(client, account, call, task_id))


def find(account, call):
    return list(run(lambda client: KIND.find(client, account, call)))


def lost(account, call):
    with pytest.raises(ProviderError) as caught:
        create(account, call)
    return caught.value


@pytest.mark.parametrize(
    "target",
    [
        (FOX, "/v1/models/acme/draw/predictions", "models"),
        ({"deployment": "acme/prod", "input": {"n": 1}}, "/v1/deployments/acme/prod/predictions", "deployments"),
        ({"version": "acme/draw:" + "0" * 64, "input": {}}, "/v1/predictions", "predictions"),
        ({"version": "ab" * 32, "input": {}}, "/v1/predictions", "predictions"),
        ({"version": "acme/draw", "input": {}}, "/v1/predictions", "predictions"),
    ],
)
def test_each_endpoint_creates_polls_and_finds(target, replicate_account, make_call, sandbox):
    request_, path, endpoint = target
    call = make_call(request_, handle=KIND.handle(request_))
    task_id = create(replicate_account, call)
    (billed,) = sandbox.bill()
    assert (billed["task_id"], billed["path"], billed["webhook"]) == (task_id, path, None)
    assert call.handle["endpoint"] == endpoint
    found = poll(replicate_account, call, task_id)
    assert isinstance(found, Succeeded)
    assert found.media[0].kind == "image"
    assert found.media[0].authorised
    assert find(replicate_account, call) == [task_id]


def test_created_and_accepted_are_both_a_yes(sandbox, replicate_account, make_call):
    sandbox.script({"defaults": {"created_status": 202}})
    assert create(replicate_account, make_call(FOX)) == sandbox.bill()[0]["task_id"]


def test_the_callback_goes_along_with_its_filter(sandbox, replicate_account, make_call):
    url = "http://127.0.0.1:9/hook?call=signed-id"
    create(replicate_account, make_call(FOX, callback_url=url))
    assert sandbox.bill()[0]["webhook"] == url


def test_hidden_version_is_found_by_its_model(sandbox, replicate_account, make_call):
    sandbox.script({"defaults": {"hidden_version": True}})
    call = make_call({"version": "acme/draw:" + "1" * 64, "input": {"a": 1}})
    assert find(replicate_account, call) == []
    task_id = create(replicate_account, call)
    assert find(replicate_account, call) == [task_id]


@pytest.mark.parametrize(
    "request_",
    [
        {"input": {}},
        {"model": "a/b", "version": "a/b", "input": {}},
        {"model": "../v1", "input": {}},
        {"model": "a/b/c", "input": {}},
        {"version": "xyz", "input": {}},
        {"model": "a/b", "input": []},
        {"model": "a/b", "input": {}, "webhook": "https://evil.example"},
        {"model": "a/b", "input": {}, "output": "video"},
    ],
)
def test_a_wrong_request_never_leaves(sandbox, replicate_account, make_call, request_):
    error = lost(replicate_account, make_call(request_))
    assert (error.code, error.fate, error.remedy) == ("request_invalid", Fate.NOT_SENT, Remedy.CUSTOMER)
    assert sandbox.stats()["requests"]["create"] == 0


def test_the_frozen_handle_beats_the_request(sandbox, replicate_account, make_call):
    frozen = {**KIND.handle(FOX), "target": "acme/frozen"}
    create(replicate_account, make_call(FOX, handle=frozen))
    assert sandbox.bill()[0]["model"] == "acme/frozen"


@pytest.mark.parametrize(
    "fault",
    [
        "drop",
        "cut",
        {"status": 502, "body": "<html>"},
        {"status": 500, "body": {"detail": "x"}},
        {"status": 404, "body": "gone"},
    ],
)
def test_a_lost_create_is_ambiguous_billed_and_found(sandbox, replicate_account, make_call, fault):
    sandbox.script({"rules": [{"when": {"route": "create"}, "do": {"accept_then": fault}}]})
    call = make_call(FOX)
    assert lost(replicate_account, call).fate is Fate.AMBIGUOUS
    (billed,) = sandbox.bill()
    assert find(replicate_account, call) == [billed["task_id"]]


@pytest.mark.parametrize("body", [{}, {"id": None}, {"id": "a b"}, [], "created", None])
def test_accepted_without_id_is_ambiguous(sandbox, replicate_account, make_call, body):
    sandbox.script({"defaults": {"accept_then": {"status": 201, "body": body}}})
    error = lost(replicate_account, make_call(FOX))
    assert (error.code, error.fate) == ("accepted_without_id", Fate.AMBIGUOUS)
    assert sandbox.totals()["replicate"] == 1


def test_a_drop_before_acceptance_is_ambiguous_too_and_not_found(sandbox, replicate_account, make_call):
    sandbox.script({"rules": [{"when": {"route": "create"}, "do": {"refuse": "drop"}}]})
    call = make_call(FOX)
    assert lost(replicate_account, call).fate is Fate.AMBIGUOUS
    assert find(replicate_account, call) == []
    assert sandbox.totals()["all"] == 0


def test_throttling_is_rejected_with_its_wait(sandbox, replicate_account, make_call):
    body = {"detail": "Request was throttled. Your rate limit resets in ~30s.", "status": 429}
    sandbox.script({"defaults": {"reply": {"status": 429, "body": body}}})
    error = lost(replicate_account, make_call(FOX))
    assert (error.fate, error.remedy, error.retry_after) == (Fate.REJECTED, Remedy.THROTTLED, 30.0)


def test_a_revoked_key_is_the_operators(sandbox, make_call):
    account = Account("test", sandbox.replicate_url, "revoked")
    error = lost(account, make_call(FOX))
    assert (error.code, error.fate, error.remedy) == ("provider_auth_invalid", Fate.REJECTED, Remedy.OPERATOR)
    with pytest.raises(ProviderError, match="provider_auth_invalid"):
        find(account, make_call(FOX))


def test_a_running_prediction_shows_progress_then_ends(sandbox, replicate_account, make_call):
    sandbox.script({"defaults": {"run_seconds": 600}})
    call = make_call(FOX)
    task_id = create(replicate_account, call)
    assert poll(replicate_account, call, task_id) == Running(None, "starting")
    sandbox.advance(300)
    assert poll(replicate_account, call, task_id) == Running(0.5, "processing")
    sandbox.advance(301)
    assert isinstance(poll(replicate_account, call, task_id), Succeeded)


def test_cancel_stops_a_run_and_leaves_an_ended_one(sandbox, replicate_account, make_call):
    sandbox.script({"defaults": {"run_seconds": 600}})
    call = make_call(FOX)
    first, second = create(replicate_account, call), create(replicate_account, call)
    sandbox.finish(second)
    for task_id in (first, first, second):
        assert run(lambda client, t=task_id: KIND.cancel(client, replicate_account, call, t)) is True
    stopped = poll(replicate_account, call, first)
    assert isinstance(stopped, Failed)
    assert stopped.cancelled
    assert isinstance(poll(replicate_account, call, second), Succeeded)
    assert run(lambda client: KIND.cancel(client, replicate_account, call, "nobody")) is False
    assert find(replicate_account, call) == [first, second]


def test_an_unknown_task_is_missing_only_by_the_providers_word(sandbox, replicate_account, make_call):
    call = make_call(FOX)
    assert poll(replicate_account, call, "nobody") == Missing()
    sandbox.script({"rules": [{"when": {"route": "poll"}, "do": {"reply": {"status": 404, "body": "<html>"}}}]})
    with pytest.raises(ProviderError, match="unexpected_response"):
        poll(replicate_account, call, "nobody")


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ({"status": 500, "body": {"detail": "x"}}, "provider_unavailable"),
        ({"status": 200, "body": "<html>"}, "malformed_response"),
        (
            {"status": 200, "body": {"id": "other", "status": "succeeded", "output": "https://x/y.png"}},
            "malformed_response",
        ),
        ({"status": 401, "body": {"title": "Unauthenticated", "detail": "x"}}, "provider_auth_invalid"),
        ({"status": 429, "body": {"detail": "x"}}, "rate_limited"),
        ({"status": 302, "headers": {"location": "https://evil.example/"}}, "unexpected_response"),
    ],
)
def test_a_poll_that_learned_nothing_is_an_error(sandbox, replicate_account, make_call, reply, code):
    sandbox.script({"rules": [{"when": {"route": "poll"}, "do": {"reply": reply}}]})
    with pytest.raises(ProviderError) as caught:
        poll(replicate_account, make_call(FOX), "abc")
    assert caught.value.code == code


def test_a_task_id_that_is_a_path_never_leaves(sandbox, replicate_account, make_call):
    with pytest.raises(ProviderError, match="request_unsendable"):
        poll(replicate_account, make_call(FOX), "../account")
    assert sandbox.stats()["requests"]["poll"] == 0


def test_results_age(sandbox, replicate_account, make_call):
    sandbox.script({"defaults": {"result_life": 3600}})
    call = make_call(FOX)
    task_id = create(replicate_account, call)
    sandbox.advance(3601)
    assert poll(replicate_account, call, task_id).code == "output_lost"
    with pytest.raises(ProviderError) as caught:
        find(replicate_account, call)
    assert (caught.value.code, caught.value.fate) == ("find_inconclusive", Fate.AMBIGUOUS)


def test_find_knows_its_own_from_others(sandbox, replicate_account, make_call):
    call = make_call(FOX)
    others = [
        {"model": "acme/draw", "input": {"prompt": "a blue fox"}},
        {"model": "acme/draw", "input": {"prompt": "a red fox", "seed": 1}},
        {"model": "acme/paint", "input": {"prompt": "a red fox"}},
        {"deployment": "acme/draw", "input": {"prompt": "a red fox"}},
    ]
    for other in others:
        create(replicate_account, make_call(other))
    create(Account("other", sandbox.replicate_url, "another-key"), call)
    assert find(replicate_account, call) == []
    first, second = create(replicate_account, call), create(replicate_account, call)
    assert find(replicate_account, call) == [first, second]


def test_find_looks_only_into_its_window(sandbox, replicate_account, make_call):
    call = make_call(FOX)
    task_id = create(replicate_account, call)
    now = datetime.now(UTC)
    for shift, expected in ((85, []), (-55, [task_id]), (55, [task_id]), (-95, [])):
        moved = make_call(FOX, started_at=now + timedelta(seconds=shift))
        assert find(replicate_account, moved) == expected, shift


def test_find_pages_through_a_crowd(sandbox, replicate_account, make_call):
    call = make_call(FOX)
    task_id = create(replicate_account, call)

    async def crowd(client):
        other = make_call({"model": "acme/draw", "input": {"prompt": "else"}})
        await asyncio.gather(*(KIND.create(client, replicate_account, other) for _ in range(250)))
        return await KIND.find(client, replicate_account, call)

    assert list(run(crowd)) == [task_id]
    assert sandbox.stats()["requests"]["list"] == 3


def test_a_lagging_list_shows_it_later(sandbox, replicate_account, make_call):
    sandbox.script({"rules": [{"when": {"route": "list"}, "do": {"list_lag": 20}}]})
    call = make_call(FOX)
    task_id = create(replicate_account, call)
    assert find(replicate_account, call) == []
    sandbox.advance(21)
    assert find(replicate_account, call) == [task_id]


def test_find_cannot_look_while_the_list_is_broken(sandbox, replicate_account, make_call):
    sandbox.script({"rules": [{"when": {"route": "list"}, "do": {"reply": {"status": 503, "body": "<html>"}}}]})
    with pytest.raises(ProviderError, match="provider_unavailable"):
        find(replicate_account, make_call(FOX))
