"""From a provider's success to a completed job: fetch the media safely, keep it, settle. One path for all ways home."""

import hashlib
import io
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from uuid import UUID

from actors import job_types
from actors.lease import Held
from actors.points import reached
from actors.runtime import Runtime
from actors.watermark import MARKED, Marked, mark
from providers.contract import Account, Kind, Media, Succeeded
from providers.download import fetch
from providers.errors import DownloadError, ProviderError
from providers.media_check import CHECKED
from store import passes, run_outcomes, settle
from store.media import object_key
from store.models import ClaimedJob, NewAsset, Settlement
from store.states import State

log = logging.getLogger("callkeeper.results")

# Of one file, and of all files of one result with their verification. What is late is fetched again, and counted.
DOWNLOAD_DEADLINE = timedelta(minutes=10)
IMPORT_DEADLINE = timedelta(minutes=25)
_TEXT = "text/plain; charset=utf-8"
_KEEP_SECONDS = 10
_IN_MEMORY = 1024**2  # bytes; larger files go to disk while they come in


async def import_media(
    rt: Runtime, job: ClaimedJob, kind: Kind, account: Account, media: Sequence[Media]
) -> list[NewAsset]:
    """Fetch, verify and keep every file. Raises DownloadError; what was already kept is then nobody's, and no harm."""
    call = OfCall(job.lease.job_id, job.call.generation, watermark=job.watermark)
    return await import_files(rt, call, kind, account, media)


class OfCall(NamedTuple):
    """Whose files they are, and whether they are kept with a mark."""

    job_id: UUID
    generation: int
    watermark: bool


async def import_files(
    rt: Runtime, call: OfCall, kind: Kind, account: Account, media: Sequence[Media]
) -> list[NewAsset]:
    """The same for the files of a call whose job is nobody's to hold any more."""
    return [await _import_one(rt, call, kind, account, one, position) for position, one in enumerate(media)]


async def import_held(
    rt: Runtime, job: ClaimedJob, held: Held, kind: Kind, account: Account, media: Sequence[Media]
) -> Sequence[NewAsset]:
    """The same while the lease holds, all files within one deadline. Raises DownloadError, LeaseLost or StopWanted."""
    try:
        return await rt.held(import_media(rt, job, kind, account, media), held, deadline=IMPORT_DEADLINE)
    except ProviderError as late:
        raise DownloadError("result_timeout", f"{len(media)} files: {late.message}", retryable=True) from None


def import_now(
    rt: Runtime, job: ClaimedJob, held: Held, kind: Kind, account: Account, media: Sequence[Media]
) -> Sequence[NewAsset]:
    """The same from a worker's thread."""
    return rt.submit(import_held(rt, job, held, kind, account, media)).result() if media else ()


async def _import_one(rt: Runtime, call: OfCall, kind: Kind, account: Account, media: Media, position: int) -> NewAsset:
    checked = rt.options.verify_media and media.kind in CHECKED
    marks = call.watermark and media.kind in MARKED
    with _landing(on_disk=checked or marks) as (file, path):
        fetched = await fetch(
            rt.client,
            media,
            file,
            allowed_hosts=(*kind.media_hosts, *(host.rsplit(":", 1)[0] for host in rt.options.insecure_media_hosts)),
            max_bytes=kind.max_bytes,
            deadline=DOWNLOAD_DEADLINE,
            insecure_hosts=frozenset(rt.options.insecure_media_hosts),
            authorization=_credential(kind, account) if media.authorised else None,
            key_header=kind.key_header,
        )
        kept = Marked(fetched.sha256, fetched.size, fetched.extension, fetched.content_type)
        if path is not None:
            file.flush()
            if checked:
                await rt.media_check.verify(path, media.kind)
            if marks:
                kept = await mark(path, media.kind, extension=kept.extension, content_type=kept.content_type)
                await rt.media_check.verify(path, media.kind)
        key = object_key(
            call.job_id,
            generation=call.generation,
            position=position,
            sha256=kept.sha256,
            extension=kept.extension,
        )
        await rt.media.put(key, file, content_type=kept.content_type)
    return NewAsset(object_key=key, content_type=kept.content_type, size_bytes=kept.size, sha256=kept.sha256)


def keep_partial(rt: Runtime, job: ClaimedJob, text: str) -> Sequence[NewAsset]:
    """Keep the beginning of a text that broke off; nothing, where the store does not take it."""
    content = text.encode(errors="replace")
    digest = hashlib.sha256(content).hexdigest()
    key = object_key(job.lease.job_id, generation=job.call.generation, position=0, sha256=digest, extension="txt")
    try:
        rt.submit(rt.media.put(key, io.BytesIO(content), content_type=_TEXT)).result(_KEEP_SECONDS)
    except Exception as error:  # noqa: BLE001  # whatever the store says
        log.warning("result.part_not_kept job_id=%s error=%s", job.lease.job_id, type(error).__name__)
        return ()
    return [NewAsset(object_key=key, content_type=_TEXT, size_bytes=len(content), sha256=digest, partial=True)]


def _credential(kind: Kind, account: Account) -> str:
    return f"Bearer {account.api_key}" if kind.key_header == "authorization" else account.api_key


@contextmanager
def _landing(*, on_disk: bool) -> Iterator[tuple[BinaryIO, Path | None]]:
    """A file that goes when this ends; with its path, if another process is to read it."""
    if on_disk:
        with tempfile.NamedTemporaryFile(prefix="callkeeper-") as named:
            yield cast(BinaryIO, named), Path(named.name)
    else:
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
            yield cast(BinaryIO, spool), None


def complete_with(rt: Runtime, job: ClaimedJob, answer: Succeeded, *, assets: Sequence[NewAsset]) -> None:
    """Settle as completed: the same result, the same charge, whoever brought it home. Raises LeaseLost."""
    outcome = Settlement(
        status=State.COMPLETED,
        result=result_of(answer, assets),
        cost=_cost(rt, job, answer),
        assets=assets,
        provider_id=answer.provider_id,
    )
    settle_completed(rt, job, outcome)


def settle_completed(rt: Runtime, job: ClaimedJob, outcome: Settlement) -> None:
    """Tried again while the database is away and the lease holds: what is in hand is paid for. Raises LeaseLost."""
    if job.place is not None:
        rt.db.once(run_outcomes.keep_outcome, job.lease, outcome)
    rt.db.transact(settle.complete, job.lease, outcome)
    reached("after_settle", job.lease.job_id)
    log.info("job.completed job_id=%s files=%s", job.lease.job_id, len(outcome.assets))


def result_of(answer: Succeeded, assets: Sequence[NewAsset]) -> dict[str, Any]:
    result: dict[str, Any] = {"usage": dict(answer.usage)}
    if assets:
        result["media"] = [
            {
                "object_key": asset.object_key,
                "content_type": asset.content_type,
                "size_bytes": asset.size_bytes,
                "sha256": asset.sha256,
            }
            for asset in assets
        ]
    if answer.text is not None:
        result["text"] = answer.text
    if answer.value is not None:
        result["value"] = answer.value
    return result


def _cost(rt: Runtime, job: ClaimedJob, answer: Succeeded) -> int | None:
    """Whole credits by the job type's meter; None (the whole reservation) without one, or when it fails."""
    known = job_types.REGISTRY.get(job.job_type)
    return None if known is None else metered(rt, known, answer.usage)


def metered(rt: Runtime, known: job_types.JobType, usage: Mapping[str, Any]) -> int | None:
    """What the app's own meter says. If it raises, the result is kept: one alert, and the reservation is charged."""
    if known.cost is None:
        return None
    try:
        return max(0, int(known.cost(dict(usage))))
    except Exception as error:  # noqa: BLE001  # the app's code
        message = f"{type(error).__name__}: {error}"
        rt.db.once(passes.raise_alert, f"cost_meter_failed:{known.name}", {"message": message[:200]})
        return None
