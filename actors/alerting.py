"""Telling operators that an alert has opened, by webhook and by e-mail: once an opening, however often it is raised."""

import asyncio
import json
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any

from actors import mail
from actors.post import post
from actors.runtime import Runtime
from store.outbox import Owed

_MAX_SUBJECT, _MAX_TEXT = 150, 4000


async def tell(rt: Runtime, owed: Owed) -> None:
    """Deliver one notice of an alert; where its way is not set up, nobody is told. Raises NotDelivered, MailRefused."""
    options = rt.options
    if owed.channel == "email":
        if options.smtp_url is not None and options.alert_email is not None:
            letter = compose(owed.body, key=owed.key, sender=options.mail_from, to=options.alert_email)
            await asyncio.to_thread(mail.send, options.smtp_url.get_secret_value(), letter)
    elif options.alert_url is not None:
        # `text` is what chat services show of a webhook; the rest is for programs.
        message = {"type": "alert.opened", "text": _words(owed.body), "data": owed.body}
        secret = None if options.alert_secret is None else options.alert_secret.get_secret_value()
        url = options.alert_url.get_secret_value()
        await post(rt.client, url, message, key=owed.key, secret=secret, what="the alert address")


def compose(body: Mapping[str, Any], *, key: str, sender: str, to: str) -> EmailMessage:
    """The letter. `body` is the notice's: subject, details, times, opened_at."""
    subject = " ".join(str(body["subject"]).split())[:_MAX_SUBJECT]
    return mail.letter(f"Callkeeper alert: {subject}", _words(body), key=key, sender=sender, to=to)


def _words(body: Mapping[str, Any]) -> str:
    lines = [str(body["subject"]), f"opened {body['opened_at']}; raised so far: {body['times']}"]
    details = {name: value if isinstance(value, str) else json.dumps(value) for name, value in body["details"].items()}
    lines += [f"{name}: {value}" for name, value in details.items()]
    lines.append("`callkeeper alerts` lists what is open; `--resolve SUBJECT` settles it until its cause comes back.")
    return "\n".join(lines)[:_MAX_TEXT]
