"""Somebody asks a job to end: in every state, heard at once, honoured once, and the provider is told."""

from tests.chaos.harness import Fleet, until
from tests.chaos.kit import PICTURE, WORDS


def cancels(fleet: Fleet) -> int:
    return int(fleet.sandbox.stats()["requests"]["cancel"])


def test_a_queued_job_never_runs(fleet: Fleet) -> None:
    job_id = fleet.picture("stopped in the queue.")
    assert fleet.stop(job_id) == "cancelled"
    other = fleet.picture("goes on.")
    fleet.spawn()
    fleet.until_status(other, "completed")
    until(lambda: not fleet.rows("select 1 from dramatiq.queue"), what="both messages handled")
    assert fleet.events(job_id) == ["queued", "cancelled"]
    assert fleet.creates("stopped in the queue.") == 0
    assert cancels(fleet) == 0, "nothing ran upstream, so nothing is cancelled there"
    assert fleet.charged(job_id) == ("refunded", 0)
    fleet.check()


def test_a_waiting_job_is_cancelled_here_and_upstream(crew: Fleet) -> None:
    crew.sandbox.script({"defaults": {"run_seconds": 600}})
    job_id = crew.picture("long run.")
    crew.until_status(job_id, "waiting")
    assert crew.stop(job_id) == "cancelled"
    until(lambda: crew.sandbox.bill()[0]["status"] == "canceled", what="the cancel upstream")
    until(
        lambda: crew.rows("select 1 from callkeeper.consequences where delivered_at is not null"),
        what="the consequence being delivered",
    )
    assert cancels(crew) == 1
    assert crew.creates("long run.") == 1
    assert crew.charged(job_id) == ("refunded", 0)
    crew.check()


def test_a_cancel_that_the_provider_did_not_take_is_tried_again(crew: Fleet) -> None:
    oops = {"reply": {"status": 500, "body": "<html>oops</html>"}}
    crew.sandbox.script(
        {
            "defaults": {"run_seconds": 600},
            "rules": [
                {"name": "silent", "when": {"route": "cancel", "nth": [1]}, "do": {"refuse": "drop"}},
                {"name": "oops", "when": {"route": "cancel", "nth": [1]}, "do": oops},
            ],
        }
    )
    job_id = crew.picture("hard to cancel.")
    crew.until_status(job_id, "waiting")
    crew.stop(job_id)
    until(lambda: crew.sandbox.bill()[0]["status"] == "canceled", what="the cancel upstream")
    assert crew.sandbox.stats()["rules"] == {"silent": 1, "oops": 1}
    owed = until(
        lambda: crew.rows("select attempts from callkeeper.consequences where delivered_at is not null"),
        what="the consequence being delivered",
    )
    assert owed == [{"attempts": 3}]
    crew.check()


def test_a_running_handler_hears_it_at_once(fleet: Fleet) -> None:
    # So slow a heartbeat that only the listener can bring it in time.
    fleet.env |= {"CALLKEEPER_LEASE": "60", "CALLKEEPER_BEAT": "20"}
    fleet.spawn()
    job_id = fleet.chore(gate=str(fleet.folder / "never"))
    until(fleet.started, what="the start")
    until(lambda: _listening(fleet), what="somebody listening for stops")
    assert fleet.stop(job_id) == "running"
    fleet.until_status(job_id, "cancelled", within=3)
    assert len(fleet.started()) == 1
    fleet.check()


def _listening(fleet: Fleet) -> bool:
    return bool(
        fleet.rows(
            "select 1 from pg_stat_activity"
            " where datname = current_database() and application_name = 'callkeeper stops' and query ilike 'listen%'"
        )
    )


def test_the_heartbeat_hears_it_when_the_listener_is_deaf(fleet: Fleet) -> None:
    fleet.spawn(modules=("tests.chaos.kit", "tests.chaos.deaf_stops"))
    job_id = fleet.chore(gate=str(fleet.folder / "never"))
    until(fleet.started, what="the start")
    assert not _listening(fleet)
    fleet.stop(job_id)
    fleet.until_status(job_id, "cancelled", within=5)
    fleet.check()


def test_an_open_sync_call_is_dropped(crew: Fleet) -> None:
    crew.sandbox.script({"rules": [{"name": "slow", "when": {"route": "message"}, "do": {"reply_delay": 30}}]})
    job_id = crew.words("never mind.")
    until(lambda: crew.creates("never mind."), what="the call")
    crew.stop(job_id)
    crew.until_status(job_id, "cancelled", within=5)
    assert crew.charged(job_id) == ("refunded", 0)
    assert crew.creates("never mind.") == 1
    crew.check()


def test_a_create_in_flight_is_learned_first_and_then_cancelled(crew: Fleet) -> None:
    """A stop must not make us forget what was bought: the answer is awaited, then the task is cancelled upstream."""
    crew.sandbox.script(
        {
            "defaults": {"run_seconds": 600},
            "rules": [{"name": "slow", "when": {"route": "create"}, "do": {"reply_delay": 1}}],
        }
    )
    job_id = crew.picture("in flight.")
    until(lambda: crew.creates("in flight."), what="the create")
    assert crew.stop(job_id) == "running"
    crew.until_status(job_id, "cancelled")
    assert "call_accepted" in crew.events(job_id)
    until(lambda: crew.sandbox.bill()[0]["status"] == "canceled", what="the cancel upstream")
    assert (crew.creates("in flight."), cancels(crew)) == (1, 1)
    crew.check()


def test_an_ambiguous_create_is_found_first_and_then_cancelled(fleet: Fleet) -> None:
    fleet.sandbox.script(
        {
            "defaults": {"run_seconds": 600},
            "rules": [
                {"name": "lost", "when": {"route": "create"}, "do": {"accept_then": "drop"}},
                # Hidden for a while, so that the stop comes while nobody knows the task.
                {"name": "lag", "when": {"route": "list"}, "do": {"list_lag": 1.5}},
            ],
        }
    )
    fleet.spawn(env={"CALLKEEPER_KINDS": fleet.kinds(visibility_lag=2)})
    job_id = fleet.picture("lost and stopped.")
    fleet.until_event(job_id, "call_ambiguous")
    assert fleet.stop(job_id) == "waiting", "it cannot be cancelled before it is known"
    fleet.until_status(job_id, "cancelled")
    events = fleet.events(job_id)
    assert events.index("call_adopted") < events.index("cancelled")
    until(lambda: fleet.sandbox.bill()[0]["status"] == "canceled", what="the cancel upstream")
    assert fleet.creates("lost and stopped.") == 1
    assert fleet.charged(job_id) == ("refunded", 0)
    fleet.check()


def test_a_stop_is_not_forgotten_when_the_job_goes_back_to_the_queue(fleet: Fleet) -> None:
    """Asked while a throttled create was out: the next claim must not buy what nobody wants any more."""
    throttled = {"status": 429, "headers": {"retry-after": "1"}, "body": {"detail": "throttled", "status": 429}}
    fleet.sandbox.script(
        {
            "rules": [
                {"name": "throttled", "when": {"route": "create", "nth": [1]}, "do": {"latency": 1, "reply": throttled}}
            ]
        }
    )
    # Neither heartbeat nor listener tells the holder; only the row does.
    quiet = {"CALLKEEPER_LEASE": "60", "CALLKEEPER_BEAT": "20"}
    fleet.spawn(modules=("tests.chaos.kit", "tests.chaos.deaf_stops"), env=quiet)
    job_id = fleet.picture("unwanted.")
    until(lambda: fleet.sandbox.stats()["requests"]["create"], what="the create")
    assert fleet.stop(job_id) == "running"
    fleet.until_status(job_id, "cancelled")
    assert fleet.sandbox.stats()["rules"]["throttled"] == 1
    assert fleet.sandbox.stats()["requests"]["create"] == 1, "asked once, refused, and never again"
    assert fleet.creates("unwanted.") == 0
    fleet.check()


def test_a_finished_job_stays_as_it_is(crew: Fleet) -> None:
    jobs = [crew.picture("done."), crew.words("done.")]
    crew.until_done()
    before = [crew.job(job_id) for job_id in jobs]
    assert [crew.stop(job_id) for job_id in jobs] == ["completed", "completed"]
    assert [crew.job(job_id) for job_id in jobs] == before
    assert crew.rows("select 1 from callkeeper.job_signals") == []
    assert [crew.charged(job_id) for job_id in jobs] == [("committed", PICTURE), ("committed", WORDS)]
    crew.check()
