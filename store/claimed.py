"""A row that was just claimed, as its holder gets it."""

from typing import Any

from store.models import CallState, ClaimedJob, Lease, Place


def as_claimed(row: Any, owner: str) -> ClaimedJob:
    return ClaimedJob(
        lease=Lease(job_id=row.id, epoch=row.epoch, token=row.lease_token, owner=owner),
        user_id=row.user_id,
        job_type=row.job_type,
        actor=row.actor,
        mode=row.mode,
        queue=row.queue,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        retry_safe=row.retry_safe,
        price=row.price,
        deadline_at=row.deadline_at,
        request=row.request,
        stopping=row.stopping,
        watermark=row.watermark,
        place=None if row.run_id is None else _place(row),
        misses=row.poll_misses,
        import_failures=row.import_failures,
        call=CallState(
            kind=row.provider_kind,
            task_id=row.provider_task_id,
            key=row.call_key,
            generation=row.call_generation,
            handle=row.call_handle,
            started_at=row.provider_call_started_at,
            resolve_by=row.resolve_by,
        ),
    )


def _place(row: Any) -> Place:
    return Place(
        run_id=row.run_id,
        step=row.step,
        stage=row.stage,
        operation_key=row.operation_key,
        depends_on=tuple(row.depends_on),
        optional=row.optional,
        round=row.round,
    )
