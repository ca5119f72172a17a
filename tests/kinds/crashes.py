"""The process dies at each named point; the passes, and the message that comes again, find what it left."""

from collections.abc import Callable, Iterator
from functools import partial

from tests.kinds.operations import Operation
from tests.kinds.play import Play

Act = Callable[[Play], None]
SYNC = ("after_claim", "after_intent", "after_accept", "after_result", "after_upload", "after_settle")
ASYNC = (
    "after_claim", "after_intent", "after_accept", "after_checkpoint", "mid_poll", "after_result", "after_upload",
    "after_settle",
)  # fmt: skip


def of(operation: Operation) -> Iterator[tuple[str, Act]]:
    for point in SYNC if operation.answers else ASYNC:
        yield point, partial(_dies, point=point)
    if operation.sync:
        for point in ("after_intent", "after_accept", "after_upload"):
            yield f"{point}, and it may run twice", partial(_runs_twice, point=point)
    if operation.calls_back:
        yield "after_accept, named by its callback", _named_by_its_callback
    if not operation.answers:
        for point in ("after_result", "after_upload", "after_settle"):
            yield f"{point} in an importer", partial(_dies, point=point, variant="large-")


def _runs_twice(play: Play, *, point: str) -> None:
    """The app said that a second run does no harm, so here, and only here, the provider may see two."""
    play.script()
    assert play.until_crash(point, "again-")
    play.world.lapse()
    play.world.passes()
    play.go_home()
    play.ends_well(attempt=2, creates=1 if point == "after_intent" else 2)


def _named_by_its_callback(play: Play) -> None:
    """The worker died with the answer in its hand, and no list shows the task."""
    play.world.listen()
    play.script(("list", {"list_off": True}), webhook="on_completion")
    assert play.until_crash("after_accept")
    play.world.lapse()
    play.world.passes()
    assert (play.status, play.row["provider_task_id"]) == ("waiting", None)
    play.run_out()
    assert play.told() == [200]
    play.go_home()
    assert "call_adopted" in play.events()
    play.ends_well()


def _dies(play: Play, *, point: str, variant: str = "") -> None:
    operation = play.operation
    play.script()
    assert play.until_crash(point, variant), "it came to that point"
    assert point == "after_settle" or play.is_open
    play.world.lapse()
    play.world.passes()
    play.run_out()
    gone = point == "after_intent" or (point == "after_accept" and not operation.finds)
    gone |= operation.answers and point in ("after_result", "after_upload")
    if gone:
        if not operation.sync:
            play.rounds(2)
            assert play.status == "waiting"
            play.world.end_quiet()
            play.rounds(1)
        play.ends_badly("reconcile_no_recovery", creates=int(point != "after_intent"))
        return
    play.go_home()
    play.ends_well(attempt=2 if point == "after_claim" else 1)
