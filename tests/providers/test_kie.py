"""KIE's asynchronous kinds against the sandbox: each from create to media, each way to fail, and what was billed."""

import asyncio
import io
from datetime import timedelta

import pytest

from providers.contract import Account, Failed, Missing, Running, Succeeded
from providers.download import fetch
from providers.errors import DownloadError, Fate, ProviderError, Remedy
from providers.http import make_client, make_looking_client
from providers.kie import KINDS, NOWHERE, TASK_DETAIL, KieTasks
from providers.kie_market import KieKlingRequest
from providers.kie_words import kling_task
from providers.registry import get_kind

URL = "https://files.example/in.png"
REQUESTS = {
    "kie-standard": {"model": "nano-banana-pro", "input": {"prompt": "a red fox"}},
    "kie-veo": {"prompt": "a red fox", "model": "veo3_fast"},
    "kie-suno": {"customMode": False, "instrumental": False, "model": "V5", "prompt": "a red fox"},
    "kie-kontext": {"prompt": "a red fox"},
    "kie-luma": {"prompt": "a red fox", "videoUrl": URL},
    "kie-kling3": {"prompt": "a red fox", "duration": "5"},
    "kie-runway": {"prompt": "a red fox"},
    "kie-lip-sync": {"model": "infinitalk/from-audio", "input": {"image_url": URL, "audio_url": URL}},
}
MAKES = {"kie-standard": "image/png", "kie-suno": "audio/mpeg", "kie-kontext": "image/png"}
# The words of a run under way, at its beginning and past its half.
WORDS = {
    "kie-standard": ("waiting", "generating"),
    "kie-veo": ("0", "0"),
    "kie-suno": ("PENDING", "FIRST_SUCCESS"),
    "kie-kontext": ("0", "0"),
    "kie-luma": ("0", "0"),
    "kie-kling3": ("waiting", "generating"),
    "kie-runway": ("wait", "generating"),
    "kie-lip-sync": ("waiting", "generating"),
}
every_kind = pytest.mark.parametrize("name", list(REQUESTS))


@pytest.fixture
def account(sandbox, key):
    return Account("test", sandbox.kie_url, key)


@pytest.fixture
def one(make_call):
    """The call of a kind as a poll gets it: with what was frozen, and without the request."""

    def make(name):
        return make_call({}, handle=get_kind(name).provider.handle(REQUESTS[name]))

    return make


class Lane:
    """One loop and its two clients for all tests here, as a worker has them: making a client is what costs."""

    def __init__(self):
        self._runner = asyncio.Runner()
        self.run = self._runner.run
        self.client, self.looking = self.run(self._open())

    async def _open(self):
        return make_client(), make_looking_client()

    def close(self):
        for client in (self.client, self.looking):
            self.run(client.aclose())
        self._runner.close()


LANES = []


@pytest.fixture(scope="module", autouse=True)
def _lane():
    LANES.append(Lane())
    yield
    LANES.pop().close()


def create(name, account, call):
    lane = LANES[-1]
    return lane.run(get_kind(name).provider.create(lane.client, account, call))


def poll(name, account, call, task_id, provider=None):
    lane = LANES[-1]
    return lane.run((provider or get_kind(name).provider).poll(lane.looking, account, call, task_id))


def error_of(step, *arguments):
    with pytest.raises(ProviderError) as caught:
        step(*arguments)
    return caught.value


def download(sandbox, media):
    lane = LANES[-1]
    work = fetch(
        lane.client,
        media,
        io.BytesIO(),
        allowed_hosts=(),
        max_bytes=1024**2,
        deadline=timedelta(seconds=10),
        insecure_hosts={sandbox.netloc},
    )
    return lane.run(work)


def test_every_asynchronous_kind_is_driven_here():
    assert list(REQUESTS) == [kind.name for kind in KINDS[:-1]]


@every_kind
def test_from_create_to_media(sandbox, account, make_call, one, name):
    sandbox.script({"defaults": {"run_seconds": 600}})
    task_id = create(name, account, make_call(REQUESTS[name]))
    assert [line["task_id"] for line in sandbox.bill()] == [task_id]
    first, later = WORDS[name]
    assert poll(name, account, one(name), task_id) == Running(None, first)
    sandbox.advance(360)
    found = poll(name, account, one(name), task_id)
    assert (found.word, found.known) == (later, True)
    assert found.progress is None or 0.59 < found.progress < 0.65
    sandbox.advance(241)
    found = poll(name, account, one(name), task_id)
    assert isinstance(found, Succeeded)
    fetched = [download(sandbox, media) for media in found.media]
    assert {file.content_type for file in fetched} == {MAKES.get(name, "video/mp4")}
    assert len({file.sha256 for file in fetched}) == len(found.media) == (2 if name == "kie-suno" else 1)
    assert not any(media.authorised for media in found.media)


@every_kind
def test_the_callbacks_address_goes_along(sandbox, account, make_call, name):
    create(name, account, make_call(REQUESTS[name]))
    create(name, account, make_call(REQUESTS[name], callback_url="http://127.0.0.1:9/hook?call=signed-id"))
    spare = NOWHERE if name == "kie-suno" else None
    assert [line["webhook"] for line in sandbox.bill()] == [spare, "http://127.0.0.1:9/hook?call=signed-id"]


@every_kind
@pytest.mark.parametrize(
    ("fail", "code"),
    [
        ("Internal Error", "task_failed"),
        ("501: Generation failed", "task_failed"),
        ("Your request was rejected by Flow(x)", "content_policy"),
        ("400: image is too small", "request_invalid"),
    ],
)
def test_a_failed_run_says_why(sandbox, account, make_call, one, name, fail, code):
    sandbox.script({"defaults": {"fail": fail}})
    task_id = create(name, account, make_call(REQUESTS[name]))
    found = poll(name, account, one(name), task_id)
    assert isinstance(found, Failed)
    assert (found.code, found.message) == (code, fail.split(": ")[-1])


@every_kind
def test_no_record_yet_is_missing_and_then_it_is_there(sandbox, account, make_call, one, name):
    sandbox.script({"rules": [{"when": {"route": "poll"}, "do": {"list_lag": 60}}]})
    task_id = create(name, account, make_call(REQUESTS[name]))
    assert poll(name, account, one(name), task_id) == Missing()
    sandbox.advance(61)
    assert isinstance(poll(name, account, one(name), task_id), Succeeded)
    assert poll(name, account, one(name), "nobody") == Missing()


@every_kind
def test_a_success_without_a_result_is_looked_at_again(sandbox, account, make_call, one, name):
    sandbox.script({"defaults": {"succeed_without_output": True}})
    task_id = create(name, account, make_call(REQUESTS[name]))
    assert error_of(poll, name, account, one(name), task_id).code == "output_missing"


@every_kind
def test_a_new_word_is_a_run_that_goes_on(sandbox, account, make_call, one, name):
    sandbox.script({"defaults": {"word": "77"}})
    task_id = create(name, account, make_call(REQUESTS[name]))
    if name in ("kie-veo", "kie-kontext", "kie-luma"):
        assert poll(name, account, one(name), task_id) == Running(None, "77", known=False)
    else:
        assert error_of(poll, name, account, one(name), task_id).code == "malformed_response"
    sandbox.script({"defaults": {"word": "dreaming"}})
    if name in ("kie-veo", "kie-kontext", "kie-luma"):
        assert error_of(poll, name, account, one(name), task_id).code == "malformed_response"
    else:
        found = poll(name, account, one(name), task_id)
        assert (found.word, found.known) == ("dreaming", False)


@every_kind
@pytest.mark.parametrize(
    "fault", ["drop", "cut", {"status": 502, "body": "<html>"}, {"status": 200, "body": {"code": 500, "msg": "oops"}}]
)
def test_a_lost_create_is_ambiguous_and_billed(sandbox, account, make_call, name, fault):
    sandbox.script({"defaults": {"accept_then": fault}})
    assert error_of(create, name, account, make_call(REQUESTS[name])).fate is Fate.AMBIGUOUS
    assert sandbox.totals()["kie"] == 1


def test_accepted_without_an_id_is_ambiguous(sandbox, account, make_call):
    sandbox.script({"defaults": {"accept_then": {"status": 200, "body": {"code": 200, "msg": "success", "data": {}}}}})
    error = error_of(create, "kie-veo", account, make_call(REQUESTS["kie-veo"]))
    assert (error.code, error.fate) == ("accepted_without_id", Fate.AMBIGUOUS)


@pytest.mark.parametrize(
    ("reply", "code", "remedy"),
    [
        ({"status": 200, "body": {"code": 402, "msg": "no credits"}}, "provider_credits_exhausted", Remedy.OPERATOR),
        ({"status": 200, "body": {"code": 429, "msg": "slow down"}}, "rate_limited", Remedy.THROTTLED),
        ({"status": 429, "headers": {"retry-after": "9"}}, "rate_limited", Remedy.THROTTLED),
        ({"status": 200, "body": {"code": 455, "msg": "maintenance"}}, "provider_maintenance", Remedy.THROTTLED),
        ({"status": 200, "body": {"code": 505, "msg": "off"}}, "provider_feature_off", Remedy.NOBODY),
    ],
)
def test_a_refused_create_is_not_billed(sandbox, account, make_call, reply, code, remedy):
    sandbox.script({"rules": [{"when": {"route": "create"}, "do": {"reply": reply}}]})
    error = error_of(create, "kie-suno", account, make_call(REQUESTS["kie-suno"]))
    assert (error.code, error.fate, error.remedy) == (code, Fate.REJECTED, remedy)
    assert error.retry_after == {
        "rate_limited": 9.0 if reply["status"] == 429 else None,
        "provider_maintenance": 300.0,
    }.get(code)
    assert sandbox.totals()["all"] == 0


@every_kind
def test_a_revoked_key_is_the_operators(sandbox, make_call, name):
    account = Account("test", sandbox.kie_url, "revoked")
    call = make_call(REQUESTS[name])
    error = error_of(create, name, account, call)
    assert (error.code, error.fate, error.remedy) == ("provider_auth_invalid", Fate.REJECTED, Remedy.OPERATOR)
    call = make_call({}, handle=get_kind(name).provider.handle(REQUESTS[name]))
    assert error_of(poll, name, account, call, "t1").code == "provider_auth_invalid"


def test_one_accounts_task_is_not_anothers(sandbox, account, make_call, one):
    task_id = create("kie-veo", account, make_call(REQUESTS["kie-veo"]))
    other = Account("other", sandbox.kie_url, "another-key")
    assert poll("kie-veo", other, one("kie-veo"), task_id) == Missing()
    # Nor is one family's another's.
    assert poll("kie-luma", account, one("kie-luma"), task_id) == Missing()


@pytest.mark.parametrize("shape", ["string", "object", "list"])
@pytest.mark.parametrize("name", ["kie-standard", "kie-veo", "kie-luma"])
def test_results_come_in_several_shapes(sandbox, account, make_call, one, name, shape):
    sandbox.script({"defaults": {"shape": shape, "files": 2}})
    task_id = create(name, account, make_call(REQUESTS[name]))
    assert len(poll(name, account, one(name), task_id).media) == 2


def test_a_broken_result_is_none(sandbox, account, make_call, one):
    sandbox.script({"defaults": {"output": '{"resultUrls": ['}})
    task_id = create("kie-standard", account, make_call(REQUESTS["kie-standard"]))
    assert error_of(poll, "kie-standard", account, one("kie-standard"), task_id).code == "output_missing"


def test_a_model_that_writes(sandbox, account, make_call):
    sandbox.script({"defaults": {"output": {"resultObject": {"text": "a poem"}}}})
    request_ = {**REQUESTS["kie-standard"], "output": "text"}
    task_id = create("kie-standard", account, make_call(request_))
    call = make_call({}, handle=get_kind("kie-standard").provider.handle(request_))
    assert poll("kie-standard", account, call, task_id).text == "a poem"


@pytest.mark.parametrize(("name", "word"), [("kie-luma", "4"), ("kie-suno", "CALLBACK_EXCEPTION")])
def test_a_failed_callback_does_not_lose_a_result(sandbox, account, make_call, one, name, word):
    sandbox.script({"defaults": {"run_seconds": 100}, "rules": [{"when": {"route": "poll"}, "do": {"word": word}}]})
    task_id = create(name, account, make_call(REQUESTS[name]))
    sandbox.advance(101)
    assert isinstance(poll(name, account, one(name), task_id), Succeeded)


def test_runways_file_expires(sandbox, account, make_call, one):
    sandbox.script({"defaults": {"result_life": 60}})
    task_id = create("kie-runway", account, make_call(REQUESTS["kie-runway"]))
    assert isinstance(poll("kie-runway", account, one("kie-runway"), task_id), Succeeded)
    sandbox.advance(61)
    assert poll("kie-runway", account, one("kie-runway"), task_id).code == "output_lost"


def test_other_files_are_gone_by_their_address(sandbox, account, make_call, one):
    sandbox.script({"defaults": {"result_life": 60}})
    task_id = create("kie-veo", account, make_call(REQUESTS["kie-veo"]))
    sandbox.advance(61)
    found = poll("kie-veo", account, one("kie-veo"), task_id)
    with pytest.raises(DownloadError) as caught:
        download(sandbox, found.media[0])
    assert caught.value.gone


def test_klings_older_record_path(sandbox, account, make_call):
    older = KieTasks(KieKlingRequest, kling_task, poll_path=TASK_DETAIL)
    task_id = create("kie-kling3", account, make_call(REQUESTS["kie-kling3"]))
    call = make_call({}, handle=older.handle(REQUESTS["kie-kling3"]))
    # What was frozen is asked for, whatever is configured by now.
    assert isinstance(poll("kie-kling3", account, call, task_id), Succeeded)
    assert isinstance(poll("kie-kling3", account, call, task_id, older), Succeeded)
    elsewhere = make_call({}, handle={**call.handle, "poll": "/api/v1/account/delete"})
    assert isinstance(poll("kie-kling3", account, elsewhere, task_id), Succeeded)


@pytest.mark.parametrize("task_id", ["", "a b", "t\n", "ä", "x" * 201])
def test_an_id_that_is_none_never_leaves(sandbox, account, one, task_id):
    assert error_of(poll, "kie-veo", account, one("kie-veo"), task_id).code == "request_unsendable"
    assert sandbox.stats()["requests"]["poll"] == 0


def test_an_id_cannot_say_more_than_an_id(sandbox, account, one):
    assert poll("kie-veo", account, one("kie-veo"), "x&taskId=y#/../?") == Missing()


@every_kind
def test_what_kie_cannot_do_is_said(sandbox, account, one, name):
    provider, lane = get_kind(name).provider, LANES[-1]
    with pytest.raises(ProviderError, match="find_unsupported"):
        lane.run(provider.find(lane.looking, account, one(name)))
    assert lane.run(provider.cancel(lane.client, account, one(name), "t1")) is False
    assert not any(sandbox.stats()["requests"].values())


def test_tasks_outlive_the_sandbox_process(sandbox, account, make_call, one):
    sandbox.script({"defaults": {"run_seconds": 600}})
    task_id = create("kie-suno", account, make_call(REQUESTS["kie-suno"]))
    sandbox.stop()
    sandbox.start()
    assert poll("kie-suno", account, one("kie-suno"), task_id) == Running(None, "PENDING")
    assert sandbox.bill()[0]["status"] == "starting"
    sandbox.finish(task_id)
    assert isinstance(poll("kie-suno", account, one("kie-suno"), task_id), Succeeded)
