"""Telling a person by e-mail that a run has failed: what it came to, whose fault it is, what to do, where the money is.

Written from the code alone. Every message carries a stable Message-ID made of the notice's key, so a server that
took it twice, because its first answer was lost, delivers the same letter and not another one.
"""

import hashlib
import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from actors.copy import customer_words

_SECONDS = 20.0
_SECURE_PORT, _PLAIN_PORT = 465, 587


class MailRefused(Exception):
    """This try failed; its message names the server's answer, never what was sent."""


def compose(body: Mapping[str, Any], *, key: str, sender: str) -> EmailMessage:
    """The letter. `body` is the notice's: run_id, run_type, failure_code, to."""
    words = customer_words(body.get("failure_code"))
    paragraphs = [words.outcome, words.responsibility, words.action, words.money, f"Number: {body['run_id']}"]
    return letter(words.subject, "\n\n".join(paragraphs), key=key, sender=sender, to=body["to"])


def letter(subject: str, text: str, *, key: str, sender: str, to: str) -> EmailMessage:
    """A letter under a key. `to`: one address, or several with commas between."""
    letter = EmailMessage()
    letter["From"] = sender
    letter["To"] = to
    letter["Subject"] = subject
    letter["Date"] = formatdate()
    domain = parseaddr(sender)[1].rpartition("@")[2] or "localhost"
    letter["Message-ID"] = f"<{hashlib.sha256(key.encode()).hexdigest()[:32]}@{domain}>"
    letter["Auto-Submitted"] = "auto-generated"
    letter["X-Notice-Key"] = key
    letter.set_content(text + "\n")
    return letter


def send(url: str, letter: EmailMessage) -> None:
    """Hand one letter to the server at `smtp://` (STARTTLS where offered) or `smtps://`. Raises MailRefused.

    Blocks for at most some ten seconds, so it is not for the event loop. `?tls=never` or `?tls=always` changes whether
    `smtp://` may or must be secured.
    """
    parts = urlsplit(url)
    tls = parse_qs(parts.query).get("tls", ["offered"])[0]
    try:
        with _connect(parts.scheme, parts.hostname or "localhost", parts.port) as server:
            if parts.scheme == "smtp" and tls != "never":
                server.ehlo()
                if tls == "always" or server.has_extn("starttls"):
                    server.starttls(context=ssl.create_default_context())
            if parts.username:
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(letter)
    except smtplib.SMTPResponseException as error:
        raise MailRefused(f"the mail server answered {error.smtp_code}") from None
    except (OSError, smtplib.SMTPException) as error:
        raise MailRefused(f"the mail server cannot be used: {type(error).__name__}") from None


def _connect(scheme: str, host: str, port: int | None) -> smtplib.SMTP:
    if scheme == "smtps":
        return smtplib.SMTP_SSL(host, port or _SECURE_PORT, timeout=_SECONDS, context=ssl.create_default_context())
    return smtplib.SMTP(host, port or _PLAIN_PORT, timeout=_SECONDS)
