"""What followers are told: by whom, and only while somebody follows."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from store import follow, jobs, milestones, polls
from store.models import Lease, PollNote
from tests.store.steps import FAR, LAPSED, TERM, Steps

REST = ',"kind":"token","data":{"from":0,"text":"é"}}'


def heard(steps: Steps, work: Callable[[], Any]) -> list[str]:
    """What is said on the channel of what is not stored, while `work` is done."""
    with steps.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text(f"listen {follow.EPHEMERAL}"))
        work()
        link: Any = connection.connection.driver_connection
        steps.db.once(lambda c: c.execute(sa.text(f"select pg_notify('{follow.EPHEMERAL}', 'end')")))
        notes = []
        for note in link.notifies(timeout=10):
            if note.payload == "end":
                break
            notes.append(note.payload)
        connection.execute(sa.text("unlisten *"))
        return notes


def followed(steps: Steps, lease: Lease, *, term: timedelta = TERM, ephemeral: bool = True) -> None:
    steps.db.once(follow.mark, {lease.job_id: ephemeral}, term=term)


def test_what_is_said_carries_the_last_event(steps: Steps) -> None:
    lease = steps.running(mode="local")
    followed(steps, lease)
    (payload,) = heard(steps, lambda: steps.db.once(follow.say, lease, REST))
    assert payload == f'{lease.job_id} {{"seq":2,"attempt":1,"epoch":1{REST}'


SILENT: dict[str, Callable[[Steps, Lease], Lease]] = {
    "nobody follows": lambda _steps, lease: lease,
    "nobody wants it": lambda steps, lease: (followed(steps, lease, ephemeral=False), lease)[1],
    "nobody does any more": lambda steps, lease: (followed(steps, lease, term=LAPSED), lease)[1],
    "another epoch": lambda steps, lease: (followed(steps, lease), Lease(lease.job_id, 7, lease.token, "x"))[1],
    "another token": lambda steps, lease: (followed(steps, lease), Lease(lease.job_id, 1, lease.job_id, "x"))[1],
    "another job": lambda steps, lease: (followed(steps, lease), Lease(steps.submit(), 1, lease.token, "x"))[1],
}


@pytest.mark.parametrize("why", SILENT)
def test_nothing_is_said(steps: Steps, why: str) -> None:
    lease = SILENT[why](steps, steps.running(mode="local"))
    assert heard(steps, lambda: steps.db.once(follow.say, lease, REST)) == []


def test_progress_is_told_and_never_stored(steps: Steps) -> None:
    lease = steps.running(mode="local")
    assert heard(steps, lambda: steps.db.once(jobs.report_progress, lease, 0.25)) == []
    followed(steps, lease)
    (payload,) = heard(steps, lambda: steps.db.once(jobs.report_progress, lease, 0.5))
    assert payload.endswith(',"kind":"progress","data":{"share":0.5}}')
    assert steps.events(lease.job_id) == ["queued", "started"]
    job_id = steps.waiting()
    steps.db.once(follow.mark, {job_id: True}, term=TERM)
    poll = steps.poll(job_id)
    (payload,) = heard(steps, lambda: steps.db.once(polls.record_polls, [PollNote(poll, FAR, progress=0.75)]))
    assert payload.startswith(f'{job_id} {{"seq":4,')
    assert payload.endswith('{"share":0.75}}')


def test_a_milestone_is_bounded_and_cleaned(steps: Steps) -> None:
    lease = steps.running(mode="local")
    with pytest.raises(ValueError, match="16384"):
        steps.db.once(milestones.record, lease, "large", {"text": "x" * 20_000})
    seen = {"key": "sk-" + "a" * 30, "url": "https://files.example/a?sig=1", "n": float("nan"), "lone": "\ud800"}
    assert steps.db.once(milestones.record, lease, "clean", seen) == 3
    event = steps.one("select frame, data from callkeeper.job_events where seq = 3")
    clean = {"key": "[redacted]", "url": "https://files.example/a", "n": None, "lone": "\N{REPLACEMENT CHARACTER}"}
    assert event["data"] == clean
    assert event["frame"].endswith(
        '"data":{"key":"[redacted]","url":"https://files.example/a","n":null,"lone":"\N{REPLACEMENT CHARACTER}"}}'
    )
    assert steps.violations() == []


def test_an_event_from_before_there_were_frames_has_one_all_the_same(steps: Steps) -> None:
    job_id = steps.submit()
    (page,) = steps.db.once(follow.read, [follow.Cursor(job_id, 0, 10)])
    steps.by_hand("update callkeeper.job_events set frame = null")
    (again,) = steps.db.once(follow.read, [follow.Cursor(job_id, 0, 10)])
    assert page == again
