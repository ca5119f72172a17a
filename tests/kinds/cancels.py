"""Somebody asks the job to stop: the work at the provider is stopped where it can be, and where not, the event says so."""

from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

from providers.registry import KINDS
from tests.kinds.operations import Operation
from tests.kinds.play import Play

Act = Callable[[Play], None]


def of(operation: Operation) -> Iterator[tuple[str, Act]]:
    yield "in the queue", _in_the_queue
    yield "as it is sent", _as_it_is_sent
    yield "as the answer comes", _as_the_answer_comes
    if operation.answers:
        return
    yield "while it runs", _while_it_runs
    yield "as the result comes", _as_the_result_comes
    yield "lost, then never found", _lost
    if operation.finds:
        yield "lost, then found", _lost_and_found


def _stop_now(play: Play, job_id: UUID) -> None:
    """A stop that is heard at once, by the holder's own beat."""
    play.world.stop(job_id)
    play.world.rt.keeper.beat()


def _ends_cancelled(play: Play, *, creates: int) -> None:
    play.world.passes()
    if creates and play.operation.asks and KINDS[play.kind].cancels:
        assert [entry["status"] for entry in play.bill()] == ["canceled"]
    play.ends_badly("cancelled", creates=creates, status="cancelled")


def _in_the_queue(play: Play) -> None:
    play.script()
    play.submit()
    assert play.world.stop(play.job_id) == "cancelled"
    play.world.work()
    _ends_cancelled(play, creates=0)


def _while_it_runs(play: Play) -> None:
    play.script()
    play.start()
    assert play.world.stop(play.job_id) == "cancelled"
    assert play.says_of_upstream()
    _ends_cancelled(play, creates=1)


def _as_it_is_sent(play: Play) -> None:
    play.script()
    play.world.at("after_intent", partial(_stop_now, play))
    play.start()
    if play.operation.sync:
        _ends_cancelled(play, creates=0)
    elif play.operation.answers:  # there is no way to stop it, and its answer is there
        play.ends_well()
    else:
        assert play.row["provider_task_id"], "a create is never aborted: its answer names what was bought"
        play.rounds(1)
        assert play.says_of_upstream()
        _ends_cancelled(play, creates=1)


def _as_the_answer_comes(play: Play) -> None:
    play.script()
    play.world.at("after_accept", partial(_stop_now, play))
    play.start()
    play.rounds(1)
    if play.status == "completed":  # it needed nothing more
        play.ends_well()
    else:
        play.world.passes()
        play.ends_badly("cancelled", creates=1, status="cancelled")


def _as_the_result_comes(play: Play) -> None:
    play.script()
    play.world.at("after_result", partial(_stop_now, play))
    play.start()
    play.run_out()
    play.go_home()
    play.ends_badly("cancelled", creates=1, status="cancelled")


def _lost(play: Play) -> None:
    play.script(("create", {"refuse": "drop"}))
    play.start()
    assert play.world.stop(play.job_id) == "waiting"
    play.rounds(2)
    assert play.is_open
    play.world.end_quiet()
    play.rounds(1)
    _ends_cancelled(play, creates=0)


def _lost_and_found(play: Play) -> None:
    play.script(("create", {"accept_then": "drop"}))
    play.start()
    assert play.world.stop(play.job_id) == "waiting"
    play.rounds(2)
    assert play.says_of_upstream()
    _ends_cancelled(play, creates=1)
