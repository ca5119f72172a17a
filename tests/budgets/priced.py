"""An app's synchronous calls, made with a price: what any job type that spends by the token does with `actors.spending`."""

from datetime import timedelta
from functools import partial
from typing import Any

from actors import job_type
from actors.admission import WORK
from actors.call import as_call, cancel, decide, finish
from actors.lease import Held, StopWanted
from actors.runtime import Runtime
from actors.spending import begin, make, refused
from providers.contract import SyncProvider
from providers.errors import ProviderError
from store.call_ledger import Spend
from store.errors import SpendingRefused
from store.models import ClaimedJob
from tests.chaos.kit import WORDS, Words, _message

PRICE = {"input": 3_000_000, "output": 15_000_000}
RESERVE = 10_000  # micro-USD
_plain = WORK["run_sync_call"]


@job_type(
    "priced-words",
    request=Words,
    kind="anthropic-sync",
    price=WORDS,
    retry_safe=True,
    attempt_deadline=timedelta(seconds=3),
    deadline=timedelta(minutes=5),
    may_abandon=True,
)
def priced_words(asked: Words) -> dict[str, Any]:
    return _message(asked)


@job_type("priced-words-once", request=Words, kind="anthropic-sync", price=WORDS)
def priced_words_once(asked: Words) -> dict[str, Any]:
    return _message(asked)


def _run(rt: Runtime, job: ClaimedJob, held: Held) -> None:
    if job.job_type not in ("priced-words", "priced-words-once"):
        _plain(rt, job, held)
        return
    kind = rt.kind("anthropic-sync")
    account, provider = rt.account(kind), kind.provider
    assert isinstance(provider, SyncProvider)
    model, within = str(job.request["model"]), kind.send_deadline
    spend = Spend(account=account.name, provider_model=model, price=PRICE, reserved=RESERVE, may_run=within)
    try:
        state = begin(rt, job, kind=kind.name, handle={"account": account.name}, quiet=within, spend=spend)
    except SpendingRefused as error:
        refused(rt, job, error)
        return
    request = partial(provider.run, account=account, call=as_call(state, job.request))
    try:
        answer = make(rt, job, held, state, spend, request, deadline=within)
    except ProviderError as error:
        decide(rt, job, kind, account, error)
        return
    except StopWanted:
        cancel(rt, job)
        return
    finish(rt, job, held, kind, account, answer)


WORK["run_sync_call"] = _run
