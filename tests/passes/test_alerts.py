"""Operators are told when an alert opens: once an opening and way, by a real server's account of what came."""

import json
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from actors import alerting
from actors.post import sign
from store import operators, passes
from tests.chaos.test_outbox import SECRET, Receiver, receiver
from tests.passes.conftest import Stand
from tests.runs.test_letters import Postbox, free_port, mail_server

__all__ = ["receiver"]

HOOK = "/services/T0/a-secret-path"


@pytest.fixture
def told(stand: Stand, receiver: Receiver) -> Stand:
    url = SecretStr(f"http://127.0.0.1:{receiver.port}{HOOK}")
    stand.rt.options = stand.rt.options.model_copy(update={"alert_url": url, "alert_secret": SecretStr(SECRET)})
    return stand


@pytest.fixture
def postbox(stand: Stand) -> Iterator[Postbox]:
    made = Postbox()
    with mail_server(made, free_port()) as url:
        changes = {"smtp_url": SecretStr(url), "alert_email": "ops@example.com, night@example.com"}
        stand.rt.options = stand.rt.options.model_copy(update=changes)
        yield made


def raise_it(stand: Stand, subject: str = "reconcile_exhausted:kie-standard") -> None:
    stand.rt.db.once(passes.raise_alert, subject, {"job_id": "j-1", "looks": 18})


def deliver(stand: Stand) -> None:
    stand.steps.by_hand("update callkeeper.alert_notices set available_at = now()")
    while stand.deliver():
        pass


def test_each_opening_is_told_once_by_each_way(told: Stand, receiver: Receiver, postbox: Postbox) -> None:
    for _ in range(3):
        raise_it(told)
        deliver(told)
    ((headers, body, _),) = receiver.notes
    said = json.loads(body)
    assert said["type"] == "alert.opened"
    assert (said["data"]["subject"], said["data"]["times"]) == ("reconcile_exhausted:kie-standard", 1)
    assert said["data"]["details"] == {"job_id": "j-1", "looks": 18}
    for part in ("reconcile_exhausted:kie-standard", "job_id: j-1", "looks: 18"):
        assert part in said["text"]
    signed = sign(SECRET, headers["webhook-id"], headers["webhook-timestamp"], body)
    assert headers["webhook-signature"] == signed
    (letter,) = postbox.letters
    assert letter["Subject"] == "Callkeeper alert: reconcile_exhausted:kie-standard"
    assert letter["To"] == "ops@example.com, night@example.com"
    assert "job_id: j-1" in str(letter.get_payload())
    assert told.rt.db.once(operators.resolve_alert, "reconcile_exhausted:kie-standard")
    deliver(told)
    assert len(receiver.notes) == len(postbox.letters) == 1, "what is settled is no news"
    raise_it(told)
    deliver(told)
    assert len(receiver.accepted()) == len(postbox.letters) == 2
    assert json.loads(receiver.notes[1][1])["data"]["times"] == 4


def test_what_cannot_be_delivered_is_tried_again_under_the_same_key(
    told: Stand, receiver: Receiver, postbox: Postbox
) -> None:
    receiver.answer, postbox.refusal = 503, "451 later"
    raise_it(told)
    deliver(told)
    errors = {row["last_error"] for row in told.steps.all("select last_error from callkeeper.alert_notices")}
    assert errors == {"the alert address answered 503", "the mail server answered 451"}
    receiver.answer, postbox.refusal = 200, None
    deliver(told)
    assert len({headers["webhook-id"] for headers, _, _ in receiver.notes}) == 1
    assert [answer for _, _, answer in receiver.notes] == [503, 200]
    assert len(postbox.letters) == 1


def test_one_way_that_is_broken_holds_up_no_other_and_neither_the_apps_notices(
    told: Stand, receiver: Receiver, postbox: Postbox
) -> None:
    receiver.stop()
    raise_it(told)
    deliver(told)
    assert len(postbox.letters) == 1
    row = told.steps.one("select * from callkeeper.alert_notices where channel = 'webhook'")
    assert (row["attempts"], row["last_error"]) == (1, "the alert address cannot be reached: ConnectError")
    assert HOOK not in str(dict(row)), "the address may be a secret"


def test_one_that_never_works_is_given_up_and_that_is_told_once(told: Stand, receiver: Receiver) -> None:
    receiver.answer = 410
    raise_it(told)
    told.steps.by_hand("update callkeeper.alert_notices set attempts = 200")
    for _ in range(3):
        deliver(told)
        told.steps.by_hand("update callkeeper.alert_notices set attempts = 200 where dead_at is null")
    assert set(told.alerts()) == {"reconcile_exhausted:kie-standard", "undelivered:alert_notices"}
    assert told.steps.count("callkeeper.alert_notices", "delivered_at is null and dead_at is null") == 0
    assert told.steps.count("callkeeper.alert_notices") == 4, "its own failing opens no third"


def test_where_no_way_is_set_up_nothing_is_left_owed(stand: Stand) -> None:
    raise_it(stand)
    deliver(stand)
    assert stand.steps.count("callkeeper.alert_notices", "delivered_at is not null and attempts = 1") == 2


def test_an_alert_is_owed_with_what_opened_it_or_not_at_all(stand: Stand) -> None:
    with stand.rt.db.engine.connect() as connection:
        passes.raise_alert(connection, "half", {})
        connection.rollback()
    assert stand.steps.count("callkeeper.alert_notices") == 0
    job = stand.submit("chore-of-passes")
    stand.steps.by_hand(
        "update callkeeper.alerts set resolved_at = now()",
        "insert into callkeeper.alerts (subject, resolved_at) values ('over', now())",
    )
    assert stand.steps.count("callkeeper.alert_notices") == 0
    assert stand.job(job)["status"] == "queued"


def test_a_subject_of_any_words_makes_a_letter() -> None:
    body = {
        "subject": "kie-veo:unknown_status:a\r\nBcc: x@y\t…" + "x" * 500,
        "details": {"a": [1]},
        "times": 1,
        "opened_at": "t",
    }
    letter = alerting.compose(body, key="alert:1", sender="films@example.com", to="ops@example.com")
    assert "\n" not in letter["Subject"]
    assert letter["Bcc"] is None
    assert "a: [1]" in letter.get_content()
