"""What can happen to a call, as plays that hold for whatever operation is put into them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from providers.registry import KINDS
from tests.kinds import callbacks, cancels, crashes
from tests.kinds.operations import Operation
from tests.kinds.play import Play
from tests.kinds.words import PAGE, Do, ends, reply, strange_word, vendor_of

Act = Callable[[Play], None]
NOWHERE = "http://127.0.0.1:9"  # the port of the discard service, where nobody listens
LOST: dict[str, Do] = {
    "hangs": {"accept_then": "hang"},
    "drops": {"accept_then": "drop"},
    "is cut": {"accept_then": "cut"},
    "says 502": {"accept_then": {"status": 502, "body": PAGE}},
    "names no id": {"accept_then": {"status": 200, "body": {}}},
}
NEVER_TAKEN: dict[str, Do] = {
    "is dropped": {"refuse": "drop"},
    "hangs": {"refuse": "hang"},
    "says 502": reply(502, PAGE),
}


@dataclass(frozen=True)
class Scenario:
    """`family` is what the scenarios of the short run are chosen by."""

    family: str
    name: str
    act: Act

    def __str__(self) -> str:
        return f"{self.family}:{self.name}".replace(" ", "-")


def scenarios_of(operation: Operation) -> Iterator[Scenario]:
    """Everything that can happen to this operation."""
    for family, part in FAMILIES.items():
        for name, act in part(operation):
            yield Scenario(family, name, act)


# Ways home. Each is held to the same row and the same charge: what the provider made of this very task, to the byte.


def _ways(operation: Operation) -> Iterator[tuple[str, Act]]:
    yield "by polls", _by_polls
    yield "every message twice", _every_message_twice
    yield "every message lost", _every_message_lost
    if not operation.sync and not operation.answers:
        yield "by an importer", _by_importer
        yield "by the pass", _by_pass
    if operation.calls_back:
        yield "by its callback", callbacks.brings_it_home


def _by_polls(play: Play) -> None:
    play.script()
    play.start()
    play.run_out()
    play.go_home()
    play.ends_well()


def _every_message_twice(play: Play) -> None:
    play.script()
    play.submit()
    play.world.work(times=2)
    play.run_out()
    play.go_home(times=2)
    play.ends_well()


def _every_message_lost(play: Play) -> None:
    """No message is ever run but those that the passes send."""
    play.script()
    play.submit("large-")
    for _ in range(6):
        play.world.do(
            "delete from dramatiq.queue",
            "update callkeeper.jobs set next_check_at = now() where finished_at is null",
        )
        play.world.pass_time()
        play.world.passes()
        play.run_out()
        if not play.is_open:
            break
    play.ends_well()


def _by_importer(play: Play) -> None:
    play.script()
    play.submit("large-")
    play.world.work()
    play.run_out()
    play.go_home()
    assert ("import_result", (str(play.job_id),)) in play.world.run_messages
    play.ends_well()


def _by_pass(play: Play) -> None:
    play.script()
    play.start()
    play.run_out()
    play.pass_home()
    play.ends_well()


# The provider's own word that it ended, or never began


def _endings(operation: Operation) -> Iterator[tuple[str, Act]]:
    for name, code, do in ends(operation):
        yield name, partial(_ends, code=code, do=do)


def _ends(play: Play, *, code: str, do: Do) -> None:
    play.script(**do)
    play.start()
    play.run_out()
    play.go_home()
    play.ends_badly(code, creates=1)


def _refusals(operation: Operation) -> Iterator[tuple[str, Act]]:
    words = vendor_of(operation)
    for name, do in words.refusals.items():
        yield name, partial(_refused, code=name.partition(" ")[0], do=do)
    for name, do in words.operator.items():
        yield name + " for the operator", partial(_waits_for_operator, code=name.partition(" ")[0], do=do)


def _refused(play: Play, *, code: str, do: Do) -> None:
    play.script((play.asking, do))
    play.start()
    play.go_home()
    play.ends_badly(code, creates=0)


def _waits_for_operator(play: Play, *, code: str, do: Do) -> None:
    play.script((play.asking, {**do, "nth": [1, 2]}))
    play.start()
    for _ in range(2):
        assert (play.status, play.row["attempt"]) == ("queued", 1)
        assert f"{play.kind}:{code}" in play.alerts()
        play.world.pass_time()
        play.world.work()
    play.run_out()
    play.go_home()
    assert play.world.one("select reason from callkeeper.provider_gates")["reason"] == "healthy"
    play.ends_well()


# Trouble with the create that proves it was not taken


def _creates(operation: Operation) -> Iterator[tuple[str, Act]]:
    words = vendor_of(operation)
    for name, do in words.throttled.items():
        yield name, partial(_throttled, do=do)
    yield (
        "throttled for as long as it says",
        partial(_waits_as_long_as_it_says, do=next(iter(words.throttled.values()))),
    )
    for name, do in words.again.items():
        yield name, partial(_again, do=do)
        yield f"{name} for ever", partial(_again_for_ever, code=name, do=do)
    yield "nobody listens", _unreachable


def _throttled(play: Play, *, do: Do) -> None:
    play.script((play.asking, {**do, "nth": [1, 2, 3, 4]}))
    play.start()
    for _ in range(3):
        assert (play.status, play.row["attempt"]) == ("queued", 1)
        play.world.pass_time()
        play.world.work()
    play.go_home(rounds=1)
    play.run_out()
    play.go_home()
    play.ends_well()


def _waits_as_long_as_it_says(play: Play, *, do: Do) -> None:
    told = {"reply": {**do["reply"], "headers": {"retry-after": "400"}}, "nth": [1]}
    play.script((play.asking, told))
    play.start()
    row = play.world.one("select extract(epoch from available_at - now()) as wait, attempt from callkeeper.jobs")
    assert 300 < row["wait"] <= 400
    assert row["attempt"] == 1
    play.go_home(rounds=1)
    play.run_out()
    play.go_home()
    play.ends_well()


def _again(play: Play, *, do: Do) -> None:
    play.script((play.asking, {**do, "nth": [1]}))
    play.start()
    play.world.pass_time()
    play.world.work()
    play.run_out()
    play.go_home()
    play.ends_well(attempt=2)


def _again_for_ever(play: Play, *, code: str, do: Do) -> None:
    play.script((play.asking, do))
    play.start()
    play.go_home()
    play.ends_badly(code, creates=0, attempt=3)


def _unreachable(play: Play) -> None:
    settings = play.world.rt.options.kinds[play.kind]
    there, settings.base_url = settings.base_url, NOWHERE
    play.script()
    try:
        play.start()
        play.world.pass_time()
        play.world.work()
        assert (play.status, play.row["attempt"]) == ("queued", 1)
    finally:
        settings.base_url = there
    play.go_home(rounds=1)
    play.run_out()
    play.go_home()
    play.ends_well()


# Polls that teach nothing


def _polls(operation: Operation) -> Iterator[tuple[str, Act]]:
    if not operation.asks:
        return
    words = vendor_of(operation)
    faults: dict[str, Do] = {
        **words.throttled, **words.operator, "500": words.error_500, "502": reply(502, PAGE), "drops": {"refuse": "drop"},
        "hangs": {"refuse": "hang"}, "somebody's 404": reply(404, PAGE), "no JSON": reply(200, "so it is"),
        "another object": reply(200, {"id": "another"}),
    }  # fmt: skip
    for name, do in faults.items():
        alert = name.partition(" ")[0] if name in words.operator else None
        yield name, partial(_poll_learns_nothing, do=do, alert=alert)


def _poll_learns_nothing(play: Play, *, do: Do, alert: str | None) -> None:
    # A look whose connection broke is made once more at once; four looks are as many as eight requests then.
    play.script(("poll", {**do, "nth": list(range(1, 9 if do.get("refuse") == "drop" else 5))}))
    play.start()
    play.world.age()
    play.run_out()
    if do.get("refuse") == "hang":
        play.world.hurry(play.kind, poll=0.2)
    play.rounds(4)
    assert (play.status, play.row["poll_misses"]) == ("waiting", 0)
    assert alert is None or f"{play.kind}:{alert}" in play.alerts()
    play.world.hurry(play.kind)
    play.go_home()
    gates = play.world.rows("select reason from callkeeper.provider_gates where stops_clocks or failures > 0")
    assert gates == [], "what answers is open again"
    play.ends_well()


def _words(operation: Operation) -> Iterator[tuple[str, Act]]:
    if (word := strange_word(operation)) is not None:
        yield "unknown", partial(_unknown_word, word=word)


def _unknown_word(play: Play, *, word: str) -> None:
    play.script(("poll", {"word": word, "nth": [1, 2, 3, 4]}))
    play.start()
    play.run_out()
    play.rounds(4)
    assert play.status == "waiting"
    assert play.alerts() == [f"{play.kind}:unknown_status:{word}"]
    play.go_home()
    play.ends_well()


def _lost_tasks(operation: Operation) -> Iterator[tuple[str, Act]]:
    unknown = vendor_of(operation).unknown_task
    if not operation.asks or unknown is None:
        return
    yield "for good", partial(_lost_for_good, do=unknown)
    yield "twice", partial(_lost_twice, do=unknown)
    yield "while young", partial(_unknown_while_young, do=unknown)
    if operation.vendor == "kie":
        yield (
            "as a record that is null",
            partial(_lost_for_good, do=reply(200, {"code": 200, "msg": "ok", "data": None})),
        )


def _lost_for_good(play: Play, *, do: Do) -> None:
    play.script(("poll", do))
    play.start()
    play.world.age()
    play.rounds(2)
    assert (play.status, play.row["poll_misses"]) == ("waiting", 2)
    play.rounds(1)
    play.ends_badly("provider_task_lost", creates=1)


def _lost_twice(play: Play, *, do: Do) -> None:
    play.script(("poll", {**do, "nth": [1, 2, 4, 5]}))
    play.start()
    play.world.age()
    play.rounds(3)
    if play.is_open:  # seen alive in between, so the count begins anew
        assert play.row["poll_misses"] == 0
        play.rounds(2)
        assert (play.status, play.row["poll_misses"]) == ("waiting", 2)
    play.run_out()
    play.go_home()
    play.ends_well()


def _unknown_while_young(play: Play, *, do: Do) -> None:
    play.script(("poll", {**do, "nth": [1, 2, 3, 4, 5]}))
    play.start()
    play.rounds(5)
    assert (play.status, play.row["poll_misses"]) == ("waiting", 0)
    play.run_out()
    play.go_home()
    play.ends_well()


# A create whose outcome nobody knows


def _ambiguous(operation: Operation) -> Iterator[tuple[str, Act]]:
    for name, do in LOST.items():
        if operation.finds:
            yield f"{name}, found", partial(_found, do=do)
        yield f"{name}, not found", partial(_not_found, do=do, creates=1)
    for name, do in NEVER_TAKEN.items():
        yield f"{name} untaken", partial(_not_found, do=do, creates=0)
    yield "says 500 in its own words", partial(_not_found, do=vendor_of(operation).error_500, creates=0)
    if operation.finds:
        yield "drops, found when the list works again", partial(_found, do=LOST["drops"], list_fails=True)
    if operation.sync:
        yield "drops, and may run twice", _runs_twice
    elif not KINDS[operation.kind].finds_lost:
        yield "drops, sought where there is no list", _sought_in_vain
    if operation.kind == "replicate-prediction" and "model" in operation.request:
        yield "drops untaken, beside one that was blanked", _beside_a_blank


def _found(play: Play, *, do: Do, list_fails: bool = False) -> None:
    rules = [("list", {**reply(502, PAGE), "nth": [1, 2]})] if list_fails else []
    play.script(("create", do), *rules)
    _send_into_silence(play, do)
    assert (play.status, play.row["provider_task_id"]) == ("waiting", None)
    play.run_out()
    play.go_home()
    assert "call_adopted" in play.events()
    play.ends_well()


def _not_found(play: Play, *, do: Do, creates: int) -> None:
    play.script((play.asking, do), ("list", {"list_off": True}))
    _send_into_silence(play, do)
    if not play.operation.sync:
        play.rounds(3)
        assert (play.status, play.row["provider_task_id"]) == ("waiting", None)
        play.world.end_quiet()
        play.rounds(1)
    play.ends_badly("reconcile_no_recovery", creates=creates)


def _runs_twice(play: Play) -> None:
    play.script((play.asking, {**LOST["drops"], "nth": [1]}))
    play.submit("again-")
    play.world.work()
    play.go_home()
    play.ends_well(attempt=2, creates=2)


def _sought_in_vain(play: Play) -> None:
    """Somebody set the kind to look for lost calls; the provider's word that it cannot is the end of it, not a delay."""
    settings = play.world.rt.options.kinds[play.kind]
    settings.finds_lost = True
    try:
        _not_found(play, do=LOST["drops"], creates=1)
    finally:
        settings.finds_lost = None


def _beside_a_blank(play: Play) -> None:
    """The list holds one of the same target, made at that time, whose input is gone: it may be ours, for ever."""
    play.script(run_seconds=0, result_life=0)
    made = play.world.control.post(
        f"/v1/models/{play.operation.request['model']}/predictions",
        json={"input": {"of": "somebody"}},
        headers={"authorization": "Bearer good"},
    )
    play.earlier = [made.json()["id"]]
    play.script(("create", {"refuse": "drop"}))
    play.start()
    play.rounds(3)
    assert (play.status, play.row["provider_task_id"]) == ("waiting", None)
    play.world.end_quiet()
    play.rounds(1)
    play.ends_badly("reconcile_no_recovery", creates=0)


def _send_into_silence(play: Play, do: Do) -> None:
    if "hang" in (do.get("accept_then"), do.get("refuse")):
        # Long enough for a slow machine to send it and to have it accepted.
        play.world.hurry(play.kind, send=0.8 if "accept_then" in do else 0.2)
    play.start()
    play.world.hurry(play.kind)


# Results that do not come whole, or no more


def _results(operation: Operation) -> Iterator[tuple[str, Act]]:
    if operation.downloads:
        for name, do in {
            "truncated": {"download": "truncated"}, "dropped": {"refuse": "drop"}, "500": reply(500, "no"),
            "gone twice": {"download": "gone"},
        }.items():  # fmt: skip
            yield name, partial(_comes_later, do=do)
        yield "a page", partial(_never_fits, code="result_wrong_type", do={"download": "wrong_type"})
        yield "refused", partial(_never_fits, code="result_refused", do=reply(400, "no"))
        yield "gone for good", partial(_expired, rules=[("download", {"download": "gone"})])
    removes = operation.vendor in ("kie", "openrouter") and operation.downloads
    if removes or operation.kind == "replicate-prediction":
        yield "expired", partial(_expired, rules=[])
        yield "expired before it was fetched", _expires_meanwhile


def _comes_later(play: Play, *, do: Do) -> None:
    play.script(("download", {**do, "nth": [1, 2]}))
    play.start()
    play.run_out()
    play.rounds(1)
    assert play.status == "waiting"
    assert "result_returned" in play.events()
    play.go_home()
    play.ends_well()


def _never_fits(play: Play, *, code: str, do: Do) -> None:
    play.script(("download", do))
    play.start()
    play.run_out()
    play.go_home()
    play.ends_badly(code, creates=1)


def _expired(play: Play, *, rules: list[tuple[str, Do]]) -> None:
    play.script(*rules, **({} if rules else {"result_life": 0}))
    play.start()
    play.run_out()
    play.go_home()
    play.ends_badly("output_lost", creates=1)


def _expires_meanwhile(play: Play) -> None:
    play.script(("poll", {**reply(502, PAGE), "nth": [1]}), result_life=3600)
    play.start()
    play.run_out()
    play.rounds(1)
    play.world.sandbox.advance(3601)
    play.go_home()
    play.ends_badly("output_lost", creates=1)


# Nothing is waited for for ever


def _deadlines(operation: Operation) -> Iterator[tuple[str, Act]]:
    yield "in the queue", _queue_deadline
    if not operation.sync and not operation.answers:
        yield "at the provider", _deadline


def _queue_deadline(play: Play) -> None:
    play.script()
    play.submit()
    play.world.do("update callkeeper.jobs set queue_deadline_at = now() - interval '1 second', next_check_at = now()")
    play.world.passes()
    play.ends_badly("queue_timeout", creates=0, status="timed_out")


def _deadline(play: Play) -> None:
    play.script()
    play.start()
    play.world.do("update callkeeper.jobs set deadline_at = now() - interval '1 second', next_check_at = now()")
    play.world.passes()
    assert play.says_of_upstream()
    play.ends_badly("deadline_exceeded", creates=1, status="timed_out")


FAMILIES: dict[str, Callable[[Operation], Iterator[tuple[str, Act]]]] = {
    "home": _ways,
    "ending": _endings,
    "refusal": _refusals,
    "create": _creates,
    "poll": _polls,
    "word": _words,
    "lost task": _lost_tasks,
    "ambiguous": _ambiguous,
    "result": _results,
    "deadline": _deadlines,
    "callback": callbacks.of,
    "cancel": cancels.of,
    "crash": crashes.of,
}
