"""Streamed answers through real workers: told live, settled whole; cut, they fail with what came kept beside them."""

from concurrent.futures import ThreadPoolExecutor

from actors import Followers
from store.media import MediaStore
from tests.behaviours.conftest import MODULES
from tests.chaos.harness import Fleet, until

TEXT = "once upon a time there was a \N{LLAMA}, " * 20


def test_a_streamed_answer_is_told_while_it_comes_and_kept_whole(fleet: Fleet) -> None:
    fleet.sandbox.script({"defaults": {"text": TEXT, "stream_pause": 0.01}})
    fleet.spawn(modules=MODULES)
    followers = Followers(fleet.url)
    job_id = fleet.submit("told", prompt="a tale.")
    with ThreadPoolExecutor(1) as pool:
        frames = pool.submit(lambda: list(followers.follow(job_id, tokens=True))).result(30)
    followers.close()
    job = fleet.job(job_id)
    assert (job["status"], job["result"]["text"]) == ("completed", TEXT)
    tokens = [frame for frame in frames if frame.kind == "token"]
    assert len(tokens) > 1, "in pieces, while it came"
    for frame in tokens:
        assert TEXT[frame.data["from"] :].startswith(frame.data["text"])
        assert frame.seq is None
    assert [frame.kind for frame in frames if frame.seq] == ["queued", "started", "call_started", "completed"]
    assert fleet.creates("a tale.") == 1
    fleet.check()


def test_a_cut_stream_is_refunded_and_what_came_is_kept(fleet: Fleet) -> None:
    fleet.sandbox.script({"defaults": {"text": TEXT, "cut_stream": True, "events": 30}})
    fleet.spawn(modules=MODULES)
    job_id = fleet.submit("told", prompt="half a tale.")
    fleet.until_status(job_id, "failed")
    assert fleet.job(job_id)["error_code"] == "stream_cut"
    (asset,) = fleet.rows("select * from callkeeper.assets where job_id = :id", id=job_id)
    part = MediaStore(str(fleet.folder / "media")).get(asset["object_key"]).decode()
    assert (asset["partial"], asset["content_type"], asset["size_bytes"]) == (
        True,
        "text/plain; charset=utf-8",
        len(part.encode()),
    )
    assert 0 < len(part) < len(TEXT)
    assert TEXT.startswith(part)
    assert fleet.charged(job_id) == ("refunded", 0)
    assert fleet.creates("half a tale.") == 1
    fleet.check()


def test_a_stream_that_is_stopped_ends_at_once(fleet: Fleet) -> None:
    fleet.sandbox.script({"defaults": {"text": TEXT, "stream_pause": 0.5}})
    fleet.spawn(modules=MODULES)
    job_id = fleet.submit("told", prompt="never mind.")
    until(lambda: fleet.creates("never mind."), what="the call")
    fleet.stop(job_id)
    fleet.until_status(job_id, "cancelled", within=5)
    assert not fleet.rows("select 1 from callkeeper.assets")
    assert fleet.charged(job_id) == ("refunded", 0)
    fleet.check()
