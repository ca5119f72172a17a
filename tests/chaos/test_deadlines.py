"""What the scheduled passes find: jobs past their deadlines, jobs whose message is gone, orphans nobody rescued."""

from uuid import UUID

from tests.chaos.harness import Fleet, until


def send(fleet: Fleet, actor: str) -> None:
    """The message that the scheduler sends, as the scheduler's row."""
    fleet.do(
        "insert into dramatiq.queue (message_id, queue_name, state, message)"
        " select id, 'maintenance', 'queued', jsonb_build_object('queue_name', 'maintenance', 'actor_name', cast(:actor as text),"
        " 'args', '[]'::jsonb, 'kwargs', '{}'::jsonb, 'options', '{}'::jsonb, 'message_id', id, 'message_timestamp', 0)"
        " from (select gen_random_uuid() as id) made",
        actor=actor,
    )


def until_passed(fleet: Fleet, actor: str) -> dict[str, object]:
    """One more run of the pass, sent now and done; its row."""
    seen = "select coalesce(max(last_success_at), '2000-01-01') as at from callkeeper.passes where name = :name"
    before = fleet.one(seen, name=actor)["at"]
    send(fleet, actor)
    until(lambda: fleet.one(seen, name=actor)["at"] > before, what=f"the pass {actor}")
    return dict(fleet.one("select * from callkeeper.passes where name = :name", name=actor))


def due(fleet: Fleet, job_id: UUID) -> None:
    """A minute has gone by since anybody looked at it."""
    fleet.do("update callkeeper.jobs set next_check_at = now() where id = :id", id=job_id)


def test_a_job_that_was_not_started_in_time_times_out(fleet: Fleet) -> None:
    job_id = fleet.submit("impatient-picture", prompt="too late.")
    until(
        lambda: fleet.one("select queue_deadline_at < now() as passed from callkeeper.jobs where id = :id", id=job_id)[
            "passed"
        ],
        what="its queue deadline",
    )
    due(fleet, job_id)
    fleet.spawn()
    until(lambda: not fleet.rows("select 1 from dramatiq.queue"), what="its message being handled")
    assert fleet.status(job_id) == "queued", "the claim refuses what is too late"
    until_passed(fleet, "sweep")
    job = fleet.job(job_id)
    assert (job["status"], job["error_code"]) == ("timed_out", "queue_timeout")
    assert (fleet.charged(job_id), fleet.creates("too late.")) == (("refunded", 0), 0)
    assert int(fleet.sandbox.stats()["requests"]["cancel"]) == 0
    fleet.check()


def test_a_waiting_call_past_its_deadline_times_out_and_is_cancelled_upstream(fleet: Fleet) -> None:
    fleet.sandbox.script({"defaults": {"run_seconds": 600}})
    fleet.spawn()
    job_id = fleet.submit("hasty-picture", prompt="endless.")
    fleet.until_status(job_id, "waiting")
    until_passed(fleet, "sweep")
    early = "select status <> 'waiting' and finished_at < deadline_at as early from callkeeper.jobs where id = :id"
    assert not fleet.one(early, id=job_id)["early"], "not before its deadline"
    past = "select deadline_at < now() as passed from callkeeper.jobs where id = :id"
    until(lambda: fleet.one(past, id=job_id)["passed"], what="its deadline")
    until_passed(fleet, "sweep")
    fleet.until_status(job_id, "timed_out")
    assert fleet.job(job_id)["error_code"] == "deadline_exceeded"
    until(lambda: fleet.sandbox.bill()[0]["status"] == "canceled", what="the cancel upstream")
    assert fleet.charged(job_id) == ("refunded", 0)
    fleet.check()


def test_a_handler_past_its_deadline_loses_the_job(fleet: Fleet) -> None:
    worker = fleet.spawn()
    job_id = fleet.chore(job_type="hasty-chore", gate=str(fleet.folder / "never"))
    until(lambda: "lease.lost" in worker.text(), what="the holder being told")
    until_passed(fleet, "sweep")
    job = fleet.job(job_id)
    assert (job["status"], job["error_code"]) == ("timed_out", "deadline_exceeded")
    assert len(fleet.started()) == 1
    fleet.check()


def test_a_queued_job_whose_message_is_gone_is_woken(fleet: Fleet) -> None:
    """A message is a right to the next turn, so it is the last in line that has none when one is lost."""
    first, lost = fleet.picture("message there."), fleet.picture("message lost.")
    fleet.do("delete from dramatiq.queue where message -> 'args' ->> 0 = :id", id=str(first))
    fleet.spawn()
    fleet.until_status(first, "completed")
    assert fleet.status(lost) == "queued"
    assert until_passed(fleet, "sweep")["acted"] == 0, "it is not yet time to look"
    due(fleet, lost)
    row = until_passed(fleet, "sweep")
    assert (row["scanned"], row["acted"], row["last_error"]) == (1, 1, None)
    fleet.until_status(lost, "completed")
    assert fleet.job(lost)["attempt"] == 1
    assert fleet.creates("message lost.") == 1
    fleet.check()


def test_the_watchdog_alone_brings_orphans_home(fleet: Fleet) -> None:
    """A fleet whose workers neither rescue nor poll by themselves: the pass once a minute is enough."""
    dead = fleet.spawn(env={"CRASH_AT": "after_accept"})
    job_id = fleet.picture("orphan.")
    fleet.until_fired("after_accept")
    dead.until_dead()
    fleet.spawn(modules=("tests.chaos.kit", "tests.chaos.passive"))
    lapsed = "select lease_until < now() as lapsed from callkeeper.jobs where id = :id"
    until(lambda: fleet.one(lapsed, id=job_id)["lapsed"], what="the lease's end")
    assert fleet.status(job_id) == "running"
    send(fleet, "watchdog")
    until(lambda: "recovered" in fleet.events(job_id), what="the recovery")
    for _ in range(3):
        send(fleet, "watchdog")
        if fleet.status(job_id) == "completed":
            break
        until_passed(fleet, "watchdog")
    fleet.until_status(job_id, "completed")
    assert fleet.creates("orphan.") == 1
    fleet.check()
