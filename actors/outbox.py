"""Delivering what is owed: notices to the app, alerts to operators, cancels to the provider, effects of the app's own.

At least once, by a stable key.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import dramatiq

from actors import alerting, effects, mail, run_watch
from actors.classify import backoff
from actors.mail import MailRefused
from actors.post import NotDelivered, post
from actors.runtime import NoCredentials, Runtime, runtime
from providers.contract import AsyncProvider, Call
from providers.errors import ProviderError
from store import outbox, passes
from store.outbox import Owed

log = logging.getLogger("callkeeper.outbox")

Run = Callable[..., Awaitable[Any]]
_TERM = timedelta(seconds=60)
_ATTEMPTS = 12
_PATIENT_ATTEMPTS = 110  # four days: a mail server may be away for a weekend, and nobody else tells whom it concerns
_DEADLINE = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # a cancel needs the task's id, never the call's time


async def deliver_due(rt: Runtime, run: Run) -> int:
    """Everything owed now, one batch of each outbox; how many were delivered."""
    delivered = 0
    for name in outbox.TABLES:
        owed = await run(rt.db.once, outbox.claim, name, term=_TERM)
        results = await asyncio.gather(*(_deliver(rt, run, one) for one in owed))
        done = [one for one, ok in zip(owed, results, strict=True) if ok]
        if done:
            await run(rt.db.once, outbox.mark_delivered, name, done)
        delivered += len(done)
    return delivered


async def _deliver(rt: Runtime, run: Run, owed: Owed) -> bool:
    try:
        if owed.outbox == "alert_notices":
            await alerting.tell(rt, owed)
        elif owed.channel == "email" and rt.options.smtp_url is not None and owed.body.get("to"):
            await asyncio.to_thread(_mail, rt.options.smtp_url.get_secret_value(), rt.options.mail_from, owed)
        elif owed.outbox == "notices":
            await _notify(rt, owed)
        elif owed.effect == "cancel_upstream":
            await _cancel_upstream(rt, owed)
        elif owed.effect == "resume_run":
            assert owed.job_id is not None  # noqa: S101  # a consequence is always a job's
            await run(run_watch.resume_owed, rt, owed.job_id)
        else:
            await asyncio.to_thread(effects.apply, (owed.effect or "").removeprefix("app:"), owed.key, owed.body)
    except (NotDelivered, MailRefused, ProviderError, NoCredentials, LookupError) as error:
        await run(_again, rt, owed, str(error))
        return False
    except Exception as error:  # noqa: BLE001  # one that fails must not take its batch along: all would be sent again
        await run(_again, rt, owed, type(error).__name__)
        return False
    return True


def _again(rt: Runtime, owed: Owed, error: str) -> None:
    patient = owed.channel == "email" or owed.outbox == "alert_notices"
    if owed.attempts >= (_PATIENT_ATTEMPTS if patient else _ATTEMPTS):
        rt.db.once(outbox.mark_dead, owed, error=error)
        rt.db.once(passes.raise_alert, f"undelivered:{owed.outbox}", {"key": owed.key, "error": error[:200]})
        log.error("outbox.dead key=%s", owed.key)
        return
    pause = backoff(owed.attempts, base=rt.options.retry_base, cap=3600, jitter=0.5)
    rt.db.once(outbox.deliver_later, owed, delay=timedelta(seconds=pause), error=error)


def _mail(url: str, sender: str, owed: Owed) -> None:
    """By SMTP, off the event loop. A run's failure is settled whatever becomes of its letter."""
    mail.send(url, mail.compose(owed.body, key=owed.key, sender=sender))


async def _notify(rt: Runtime, owed: Owed) -> None:
    """POST to the app's address, signed as Standard Webhooks; the key is the message id, so a repeat is recognised."""
    options = rt.options
    if options.notice_url is None or options.notice_secret is None:
        log.debug("notice key=%s status=%s", owed.key, owed.body.get("status"))
        return
    what = "run.failed" if owed.channel == "email" else "job.ended"
    message = {"type": what, "data": owed.body}
    secret = options.notice_secret.get_secret_value()
    await post(rt.client, str(options.notice_url), message, key=owed.key, secret=secret, what="the notice address")


async def _cancel_upstream(rt: Runtime, owed: Owed) -> None:
    kind = rt.kind(owed.body["kind"])
    if not kind.cancels:
        return  # it is watched for as long as it runs, and an operator told of it there
    provider = kind.provider
    assert isinstance(provider, AsyncProvider)  # noqa: S101  # only asynchronous calls are cancelled, by the settlement
    handle = owed.body["handle"]
    account = rt.account(kind, handle.get("account"))
    call = Call(request={}, handle=handle, call_key="", started_at=_EPOCH)
    async with asyncio.timeout(_DEADLINE):
        await provider.cancel(rt.client, account, call, owed.body["task_id"])


@dramatiq.actor(queue_name="maintenance", priority=0)
def deliver() -> None:
    """Deliver everything that is owed, once. Workers do it by themselves; this is for a fleet without a live one."""
    rt = runtime()
    while not rt.draining.is_set() and rt.submit(deliver_due(rt, rt.on_thread)).result():
        continue
