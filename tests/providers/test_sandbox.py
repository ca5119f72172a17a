"""The sandbox keeps its word: its bill is right, its faults come when scripted, and only then."""

import asyncio
import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections import Counter

import httpx
import pytest
from pydantic import ValidationError

from providers.sandbox import Sandbox, files
from providers.sandbox.script import Director, Script

AUTH = {"authorization": "Bearer k"}
CREATE = "/v1/models/acme/draw/predictions"
HELLO = {"model": "claude-x", "max_tokens": 50, "messages": [{"role": "user", "content": "hello there, sandbox"}]}
ANTHROPIC = {"x-api-key": "k", "anthropic-version": "2023-06-01"}


@pytest.fixture
def api(sandbox):
    with httpx.Client(base_url=sandbox.url, headers=AUTH, trust_env=False, timeout=10) as client:
        yield client


def create(api, prompt="x", path=CREATE, **body):
    return api.post(path, json={"input": {"prompt": prompt}, **body})


def shown(api, task_id):
    return api.get(f"/v1/predictions/{task_id}").json()


def test_every_accepted_create_is_on_the_bill_and_on_disk(sandbox, api):
    ids = [create(api, f"p{n}").json()["id"] for n in range(5)]
    bill = sandbox.bill()
    assert [line["task_id"] for line in bill] == ids
    assert [line["input"]["prompt"] for line in bill] == [f"p{n}" for n in range(5)]
    assert sandbox.totals() == {"replicate": 5, "anthropic": 0, "all": 5}
    assert sandbox.totals(containing="p3")["all"] == 1
    assert [line["task_id"] for line in sandbox.bill(containing="p3")] == [ids[3]]
    with sqlite3.connect(sandbox.bill_path) as book:
        assert book.execute("select count(*) from creates").fetchone() == (5,)
    book.close()


def test_the_same_request_twice_is_two_bills_with_one_hash(sandbox, api):
    create(api)
    create(api)
    first, second = sandbox.bill()
    assert first["request_hash"] == second["request_hash"]
    assert first["task_id"] != second["task_id"]


def test_a_create_never_shows_the_end(sandbox, api):
    body = create(api).json()
    assert (body["status"], body["output"], body["completed_at"]) == ("starting", None, None)
    assert shown(api, body["id"])["status"] == "succeeded"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"{}", 422),
        (b'{"input": []}', 422),
        (b'{"input": {}, "webhook": "ftp://x"}', 422),
        (b'{"input": {}, "webhook_events_filter": ["done"]}', 422),
    ],
)
def test_bad_requests_are_refused_in_replicates_words(sandbox, api, body, status):
    reply = api.post(CREATE, content=body)
    assert reply.status_code == status
    assert {"title", "detail", "status"} <= reply.json().keys()
    assert sandbox.totals()["all"] == 0


def test_a_version_is_demanded_where_the_path_names_none(api):
    assert create(api, path="/v1/predictions").status_code == 422
    assert create(api, path="/v1/predictions", version="a/b").status_code == 201


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": ""}, {"authorization": "Bearer revoked"}, {"authorization": "Basic k"}]
)
def test_a_key_is_demanded(sandbox, headers):
    with httpx.Client(base_url=sandbox.url, headers=headers, trust_env=False) as client:
        assert create(client).status_code == 401
        assert client.get("/v1/predictions").status_code == 401
        assert client.get("/v1/predictions/x").status_code == 401
        assert client.post("/v1/predictions/x/cancel").status_code == 401
    assert sandbox.totals()["all"] == 0


def test_accounts_do_not_see_each_other(sandbox, api):
    task_id = create(api).json()["id"]
    other = {"authorization": "Bearer other"}
    assert api.get(f"/v1/predictions/{task_id}", headers=other).status_code == 404
    assert api.get("/v1/predictions", headers=other).json()["results"] == []


def test_no_key_is_kept(sandbox, api):
    create(api)
    api.post("/v1/messages", headers={**ANTHROPIC, "x-api-key": "canary-key"}, json=HELLO)
    api.post(CREATE, headers={"authorization": "Bearer canary-key"}, json={"input": {}})
    kept = b"".join(path.read_bytes() for path in sandbox.directory.iterdir())
    assert b"canary-key" not in kept
    assert b"acme/draw" in kept


@pytest.mark.parametrize(
    ("action", "status", "error"),
    [
        ({"fail": "boom"}, "failed", "boom"),
        ({"aborted": True}, "aborted", None),
        ({"succeed_without_output": True}, "succeeded", None),
    ],
)
def test_ends_are_scripted(sandbox, api, action, status, error):
    sandbox.script({"defaults": action})
    found = shown(api, create(api).json()["id"])
    assert (found["status"], found["error"], found["output"]) == (status, error, None)


@pytest.mark.parametrize(
    ("action", "check"),
    [
        ({"shape": "string"}, lambda output: output.startswith("http")),
        ({"files": 3}, lambda output: len(output) == 3),
        ({"shape": "object"}, lambda output: output["preview"]["first"].endswith("out-0.png")),
        ({"shape": "data_url"}, lambda output: output.startswith("data:image/png;base64,")),
        ({"output": {"any": [1]}}, lambda output: output == {"any": [1]}),
    ],
)
def test_outputs_have_the_scripted_shape(sandbox, api, action, check):
    sandbox.script({"defaults": action})
    assert check(shown(api, create(api).json()["id"])["output"])


def test_a_drop_closes_without_a_word_after_billing_or_before(sandbox, api):
    sandbox.script(
        {
            "rules": [
                {"when": {"nth": [1]}, "do": {"accept_then": "drop"}},
                {"when": {"nth": [1]}, "do": {"refuse": "drop"}},
            ]
        }
    )
    for billed in (1, 1):
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            create(api)
        assert sandbox.totals()["all"] == billed
    assert create(api).status_code == 201


@pytest.mark.parametrize(("action", "billed"), [({"accept_then": "hang"}, 1), ({"refuse": "hang"}, 0)])
def test_a_hang_lasts_as_long_as_the_caller(sandbox, api, action, billed):
    sandbox.script({"rules": [{"when": {"route": "create"}, "do": action}]})
    with pytest.raises(httpx.ReadTimeout):
        api.post(CREATE, json={"input": {}}, timeout=0.2)
    assert sandbox.totals()["all"] == billed


def test_latency_and_reply_delay_fall_on_the_right_side_of_the_bill(sandbox, api):
    for action, billed in (({"latency": 30}, 0), ({"reply_delay": 30}, 1)):
        sandbox.script({"rules": [{"when": {"route": "create"}, "do": action}]})
        with pytest.raises(httpx.ReadTimeout):
            api.post(CREATE, json={"input": {}}, timeout=0.2)
        assert sandbox.totals()["all"] == billed


def test_canned_replies_come_as_written(sandbox, api):
    sandbox.script(
        {
            "rules": [
                {
                    "when": {"nth": [1]},
                    "do": {"reply": {"status": 429, "headers": {"retry-after": "7"}, "body": {"detail": "slow"}}},
                },
                {"when": {"nth": [1]}, "do": {"reply": {"status": 413, "body": "<html>big</html>"}}},
                {"when": {"nth": [1]}, "do": {"accept_then": {"status": 502}}},
            ]
        }
    )
    first, second, third = create(api), create(api), create(api)
    assert (first.status_code, first.headers["retry-after"], first.json()) == (429, "7", {"detail": "slow"})
    assert (second.status_code, second.headers["content-type"]) == (413, "text/html; charset=utf-8")
    assert (third.status_code, third.content) == (502, b"")
    assert sandbox.totals()["all"] == 1


def test_rules_fire_by_text_and_are_counted(sandbox, api):
    sandbox.script({"rules": [{"name": "fox", "when": {"contains": "fox"}, "do": {"fail": "no foxes"}}]})
    hen, fox = create(api, "a hen").json()["id"], create(api, "a fox").json()["id"]
    assert (shown(api, hen)["status"], shown(api, fox)["status"]) == ("succeeded", "failed")
    stats = sandbox.stats()
    assert stats["rules"] == {"fox": 2}
    assert stats["requests"] == {"create": 2, "poll": 2, "list": 0, "cancel": 0, "download": 0, "message": 0}


def test_probability_is_seeded():
    script = Script.model_validate({"seed": 3, "rules": [{"when": {"probability": 0.3}, "do": {"fail": "x"}}]})

    def draw():
        director = Director(script)
        return [director.cue("create").fail for _ in range(500)]

    assert draw() == draw()
    assert 100 < Counter(draw())["x"] < 200


def test_every_nth_is_counted_among_what_reaches_the_rule():
    rules = [{"when": {"contains": "b"}, "do": {"fail": "b"}}, {"when": {"every": 3}, "do": {"fail": "third"}}]
    director = Director(Script.model_validate({"rules": rules}))
    assert [director.cue("create", text).fail for text in "aababa"] == [None, None, "b", "third", "b", None]


@pytest.mark.parametrize(
    "script",
    [
        {"rule": []},
        {"defaults": {"explode": True}},
        {"rules": [{"when": {"route": "nowhere"}}]},
        {"defaults": {"created_status": 200}},
    ],
)
def test_a_script_with_a_slip_is_refused(sandbox, script):
    with pytest.raises(ValueError, match="loc"):
        sandbox.script(script)
    with pytest.raises(ValidationError):
        Script.model_validate(script)


def test_words_and_lists_lie_as_scripted(sandbox, api):
    task_id = create(api).json()["id"]
    sandbox.script(
        {
            "rules": [
                {"when": {"route": "poll"}, "do": {"word": "thinking"}},
                {"when": {"route": "list"}, "do": {"list_off": True}},
            ]
        }
    )
    assert shown(api, task_id)["status"] == "thinking"
    assert api.get("/v1/predictions").json()["results"] == []


def test_results_age_by_the_clock(sandbox, api):
    sandbox.script({"defaults": {"result_life": 3600}})
    task_id = create(api).json()["id"]
    url = shown(api, task_id)["output"][0]
    assert api.get(url).status_code == 200
    sandbox.advance(3601)
    found = shown(api, task_id)
    assert (found["status"], found["input"], found["output"], found["data_removed"]) == ("succeeded", {}, None, True)
    assert api.get(url).status_code == 404


def test_the_list_pages_newest_first_and_stays_put_under_new_creates(sandbox, api):
    ids = [create(api).json()["id"] for _ in range(230)]
    seen, url = [], "/v1/predictions"
    while url:
        page = api.get(url).json()
        seen += [listed["id"] for listed in page["results"]]
        url = page["next"]
        create(api)
    assert seen == ids[::-1]


def test_the_list_filters_by_time_on_every_page(sandbox, api):
    times = [create(api).json()["created_at"] for _ in range(120)]
    page = api.get("/v1/predictions", params={"created_after": times[10], "created_before": times[115]}).json()
    rest = api.get(page["next"]).json()
    found = [listed["created_at"] for listed in page["results"] + rest["results"]]
    assert found == times[10:116][::-1]
    assert rest["next"] is None
    assert api.get("/v1/predictions", params={"created_after": "soon"}).status_code == 400


def png_pixels(content):
    """Decode as a PNG reader would: signature, chunk checksums, and as many pixels as the header says."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        assert struct.unpack(">I", content[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == height * (1 + 3 * width)
    return raw


def test_images_are_valid_and_each_task_has_its_own(sandbox, api):
    urls = [shown(api, create(api).json()["id"])["output"][0] for _ in range(3)]
    assert len({png_pixels(api.get(url).content) for url in urls}) == 3


def boxes(content):
    at = 0
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        yield content[at + 4 : at + 8]
        at += length
    assert at == len(content)


def test_video_models_give_a_whole_clip_that_names_its_task(sandbox, api):
    task_id = create(api, path="/v1/models/acme/video-1/predictions").json()["id"]
    content = api.get(shown(api, task_id)["output"][0]).content
    assert {b"ftyp", b"moov", b"mdat"} <= set(boxes(content))
    assert task_id.encode() in content
    assert files.PLACEHOLDER not in content
    assert len(content) == len(files.mp4("a" * 26))


def test_a_short_file_declares_its_shortness(sandbox, api):
    url = shown(api, create(api).json()["id"])["output"][0]
    whole = api.get(url).content
    sandbox.script({"rules": [{"when": {"route": "download"}, "do": {"download": "short", "fraction": 0.5}}]})
    short = api.get(url)
    assert short.content == whole[: len(whole) // 2]
    assert int(short.headers["content-length"]) == len(short.content)


def test_messages_are_checked_and_billed(sandbox, api):
    assert api.post("/v1/messages", json=HELLO, headers={"authorization": ""}).status_code == 401
    assert api.post("/v1/messages", json=HELLO, headers={"x-api-key": "k"}).status_code == 400
    bad = api.post("/v1/messages", json={"model": "x"}, headers=ANTHROPIC)
    assert (bad.status_code, bad.json()["error"]["type"]) == (400, "invalid_request_error")
    assert sandbox.totals()["all"] == 0
    assert api.post("/v1/messages", json=HELLO, headers=ANTHROPIC).headers["request-id"].startswith("req_")
    assert sandbox.totals()["anthropic"] == 1


def stream(api, script, sandbox):
    sandbox.script({"defaults": script})
    events = []
    with api.stream("POST", "/v1/messages", json={**HELLO, "stream": True}, headers=ANTHROPIC) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        try:
            events.extend(json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: "))
        except httpx.RemoteProtocolError:
            events.append({"type": "cut"})
    return events


def test_a_stream_is_complete_broken_or_cut_as_scripted(sandbox, api):
    whole = stream(api, {"text": "one two three four"}, sandbox)
    assert (whole[0]["type"], whole[-1]["type"]) == ("message_start", "message_stop")
    assert "".join(e["delta"]["text"] for e in whole if e["type"] == "content_block_delta") == "one two three four"
    assert stream(api, {"stream_error": True}, sandbox)[-1]["type"] == "error"
    cut = stream(api, {"cut_stream": True}, sandbox)
    assert cut[-1]["type"] == "cut"
    assert len(cut) > 2
    assert sandbox.totals()["anthropic"] == 3


def test_it_goes_on_after_an_outage_of_any_kind(tmp_path):
    with Sandbox(directory=tmp_path) as sandbox, httpx.Client(headers=AUTH, trust_env=False) as client:
        sandbox.script({"defaults": {"run_seconds": 600}})
        stopped, running = (client.post(sandbox.url + CREATE, json={"input": {}}).json()["id"] for _ in range(2))
        client.post(f"{sandbox.replicate_url}/predictions/{stopped}/cancel")
        sandbox.advance(300)
        url = sandbox.url
        os.kill(sandbox.pid, signal.SIGKILL)
        sandbox.stop()
        with pytest.raises(httpx.ConnectError):
            client.get(f"{url}/_sandbox/health")
        sandbox.start()
        assert sandbox.url == url
        words = [client.get(f"{sandbox.replicate_url}/predictions/{i}").json()["status"] for i in (stopped, running)]
        assert words == ["canceled", "processing"]
        assert sandbox.totals()["all"] == 2
    with pytest.raises(RuntimeError, match="not running"):
        sandbox.pid  # noqa: B018


def test_it_ends_with_its_parent(tmp_path):
    command = [sys.executable, "-m", "providers.sandbox", "--port", "0", "--bill", str(tmp_path / "bill")]
    command += ["--port-file", str(tmp_path / "port"), "--with-parent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        process.stdin.close()
        assert process.wait(timeout=20) == 0
    assert int((tmp_path / "port").read_text()) > 0


def test_a_sandbox_that_cannot_start_says_so(sandbox):
    with pytest.raises(RuntimeError, match="did not start"), Sandbox(port=sandbox.port):
        pass


def test_many_creates_at_once_are_all_billed_once(sandbox):
    async def main():
        async with httpx.AsyncClient(base_url=sandbox.url, headers=AUTH, trust_env=False) as client:
            bodies = ({"input": {"n": n}} for n in range(200))
            return await asyncio.gather(*(client.post(CREATE, json=body) for body in bodies))

    ids = {reply.json()["id"] for reply in asyncio.run(main())}
    assert len(ids) == 200
    assert {line["task_id"] for line in sandbox.bill()} == ids
