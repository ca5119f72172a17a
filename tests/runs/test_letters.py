"""One letter for a failed run, by SMTP, in words for its customer: whatever the mail server does, and for however long."""

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from actors import mail
from actors.copy import COPY, UNKNOWN, Fault, customer_words
from actors.runs import Step
from tests.chaos.harness import Fleet, until
from tests.runs import film
from tests.runs.test_flow import submit, until_ended

PASSWORD = "p/ss:word"
BODY = {"run_id": "123e4567-e89b-12d3-a456-426614174000", "failure_code": "task_failed", "to": "ann@example.com"}


class Postbox:
    """Takes letters, or answers `refusal` instead. `secured` and `logins` say how each letter came."""

    def __init__(self) -> None:
        self.letters: list[Message] = []
        self.refusal: str | None = None
        self.secured: list[bool] = []
        self.logins: list[tuple[bytes, bytes]] = []

    async def handle_DATA(self, server: Any, _session: Any, envelope: Any) -> str:  # aiosmtpd's name
        if self.refusal:
            return self.refusal
        self.letters.append(message_from_bytes(envelope.content))
        self.secured.append(server.transport.get_extra_info("ssl_object") is not None)
        return "250 taken"

    def authenticate(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, told: LoginPassword) -> Any:
        self.logins.append((told.login, told.password))
        return AuthResult(success=told.password == PASSWORD.encode(), handled=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mail_server(postbox: Postbox, port: int, **more: Any) -> Iterator[str]:
    controller = Controller(postbox, hostname="127.0.0.1", port=port, **more)
    controller.start()
    try:
        yield f"smtp://127.0.0.1:{port}"
    finally:
        controller.stop()


@pytest.mark.parametrize("code", [*COPY, "something_new", None])
def test_every_letter_says_what_whose_what_to_do_and_the_money(code: str | None) -> None:
    words = customer_words(code)
    letter = mail.compose({**BODY, "failure_code": code}, key="k", sender="Films <films@example.com>")
    text = letter.get_content()
    for part in (words.outcome, words.responsibility, words.action, words.money, BODY["run_id"]):
        assert part in text
    for inner in ("Traceback", "task_", "ffmpeg", "memory", "worker", "provider", "replicate", "stack", "null"):
        assert inner.lower() not in text.lower().replace(str(code), "")


def test_what_is_unknown_is_ours() -> None:
    assert customer_words("never_seen_before") is UNKNOWN
    assert UNKNOWN.fault is Fault.OURS
    for code in ("out_of_memory", "worker_lost", "handler_error", "provider_credits_exhausted"):
        assert customer_words(code).fault is Fault.OURS


def test_a_letter_is_taken_and_named_by_its_key() -> None:
    postbox = Postbox()
    with mail_server(postbox, free_port()) as url:
        for _ in range(2):
            mail.send(url, mail.compose(BODY, key="render-failed-email:1", sender="films@example.com"))
        mail.send(url, mail.compose(BODY, key="render-failed-email:2", sender="films@example.com"))
    ids = [letter["Message-ID"] for letter in postbox.letters]
    assert ids[0] == ids[1] != ids[2]
    assert postbox.letters[0]["To"] == "ann@example.com"


def test_a_refusal_is_told_without_the_servers_words() -> None:
    postbox = Postbox()
    postbox.refusal = "451 4.3.0 internal s3cr3t"
    with mail_server(postbox, free_port()) as url, pytest.raises(mail.MailRefused, match="451") as refused:
        mail.send(url, mail.compose(BODY, key="k", sender="films@example.com"))
    assert "s3cr3t" not in str(refused.value)
    with pytest.raises(mail.MailRefused, match="cannot be used"):
        mail.send(f"smtp://127.0.0.1:{free_port()}", mail.compose(BODY, key="k", sender="films@example.com"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of a mail server at 127.0.0.1, in one file."""
    path = tmp_path_factory.mktemp("mail") / "server.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture
def secure(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


LETTER = mail.compose(BODY, key="k", sender="films@example.com")


@pytest.mark.usefixtures("trusted")
def test_what_is_offered_is_secured_before_the_password_is_said(secure: ssl.SSLContext) -> None:
    postbox = Postbox()
    login = {"authenticator": postbox.authenticate, "auth_required": True, "auth_require_tls": True}
    with mail_server(postbox, free_port(), tls_context=secure, **login) as url:
        mail.send(url.replace("//", "//films%40example.com:p%2Fss%3Aword@"), LETTER)
        with pytest.raises(mail.MailRefused, match="535") as refused:
            mail.send(url.replace("//", "//films:wr0ng@"), LETTER)
        with pytest.raises(mail.MailRefused, match="530"):
            mail.send(url, LETTER)
    assert "wr0ng" not in str(refused.value)
    assert postbox.logins[0] == (b"films@example.com", PASSWORD.encode())
    assert set(postbox.logins[1:]) == {(b"films", b"wr0ng")}, "by every mechanism that is offered"
    assert postbox.secured == [True]


@pytest.mark.usefixtures("trusted")
def test_a_server_that_is_secured_from_its_first_byte(secure: ssl.SSLContext) -> None:
    postbox = Postbox()
    with mail_server(postbox, free_port(), ssl_context=secure) as url:
        mail.send(url.replace("smtp:", "smtps:"), LETTER)
    assert postbox.secured == [True]


def test_a_server_that_nobody_vouches_for_gets_no_letter_and_no_password(secure: ssl.SSLContext) -> None:
    postbox = Postbox()
    login = {"authenticator": postbox.authenticate, "auth_require_tls": False}
    with mail_server(postbox, free_port(), tls_context=secure, **login) as url:
        with pytest.raises(mail.MailRefused, match="SSLCertVerificationError"):
            mail.send(url.replace("//", "//films:anything@"), LETTER)
        mail.send(url + "?tls=never", LETTER)
    assert (postbox.logins, postbox.secured) == ([], [False])


def test_what_must_be_secured_and_cannot_is_not_sent() -> None:
    postbox = Postbox()
    with mail_server(postbox, free_port()) as url:
        with pytest.raises(mail.MailRefused, match="SMTPNotSupportedError"):
            mail.send(url + "?tls=always", LETTER)
        mail.send(url, LETTER)
    assert postbox.secured == [False]


def _try_now(fleet: Fleet, run_id: Any) -> int:
    fleet.do(
        "update callkeeper.notices set available_at = now() where run_id = :id and available_at > now()"
        " and claim_token is null",
        id=run_id,
    )
    return int(fleet.one("select attempts from callkeeper.notices where run_id = :id", id=run_id)["attempts"])


def test_a_mail_server_that_is_down_for_a_day_gets_the_letter_once_after(make_fleet: Any) -> None:
    port = free_port()
    fleet: Fleet = make_fleet(
        CALLKEEPER_SMTP_URL=f"smtp://127.0.0.1:{port}", CALLKEEPER_MAIL_FROM="Films <films@example.com>"
    )
    fleet.spawn(modules=(film.__name__,))
    steps = [Step("film", "film.join", {"starts": str(fleet.starts), "fault": "always media_unusable"})]
    run_id = submit(fleet, steps, email="ann@example.com")
    assert until_ended(fleet, run_id)["status"] == "failed"
    notice = "select * from callkeeper.notices where run_id = :id"
    until(lambda: fleet.one(notice, id=run_id)["attempts"] >= 2, what="tries that failed")
    # The rest of the day, by moving its clock: what an hourly try would have counted, and the last one due.
    fleet.do(
        "update callkeeper.notices set attempts = 36, created_at = now() - interval '1 day' where run_id = :id",
        id=run_id,
    )
    until(lambda: _try_now(fleet, run_id) > 36, what="a try a day later")
    assert fleet.one("select status from callkeeper.runs where id = :id", id=run_id)["status"] == "failed"
    postbox = Postbox()
    with mail_server(postbox, port):
        until(
            lambda: _try_now(fleet, run_id) and fleet.one(notice, id=run_id)["delivered_at"],
            what="the letter",
            within=30,
        )
    assert [letter["X-Notice-Key"] for letter in postbox.letters] == [f"render-failed-email:{run_id}"]
    text = str(postbox.letters[0])
    assert "s3cr3t" not in text
    assert fleet.one("select count(*) as n from callkeeper.notices where run_id = :id", id=run_id)["n"] == 1
    fleet.check()
