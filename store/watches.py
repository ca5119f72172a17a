"""Tasks that outlive their jobs: claimed when due, alerted about once, ended with what became of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement
from store.models import NewAsset


@dataclass(frozen=True, slots=True)
class Watch:
    """A task whose job has ended, ours to ask about for a while. `over`: its day is past, this look is the last."""

    job_id: UUID
    kind: str
    task_id: str
    generation: int
    handle: Mapping[str, Any]
    started_at: datetime
    token: UUID
    looks: int
    over: bool
    watermark: bool

    @property
    def binds(self) -> dict[str, Any]:
        return {"job_id": self.job_id, "task_id": self.task_id, "token": self.token}


# Looked at after two minutes, then ever more seldom, at least once an hour.
CLAIM_WATCHES = statement(
    """
    with due as materialized (
      select job_id, provider_task_id from callkeeper.upstream_watches
      where ended_at is null and check_at <= now()
      order by check_at, job_id
      limit :at_most
      for update skip locked
    )
    update callkeeper.upstream_watches w
    set claim_token = gen_random_uuid(), looks = w.looks + 1,
      check_at = clock_timestamp() + least(interval '2 minutes' * power(2, least(w.looks, 6)), interval '1 hour')
    from due
    where w.job_id = due.job_id and w.provider_task_id = due.provider_task_id
      and w.outcome is null and w.check_at <= now()
    returning w.job_id, w.provider_kind as kind, w.provider_task_id as task_id, w.call_generation as generation,
      w.call_handle as handle, w.call_started_at as started_at, w.claim_token as token, w.looks,
      w.watch_until <= now() as over, (select j.watermark from callkeeper.jobs j where j.id = w.job_id) as watermark
    """
).bindparams(sa.bindparam("at_most", type_=sa.Integer))


def claim(connection: sa.Connection, *, at_most: int = 50) -> list[Watch]:
    """Up to `at_most` tasks that are due for a look, each advanced to its next one."""
    return [Watch(**row) for row in connection.execute(CLAIM_WATCHES, {"at_most": at_most}).mappings()]


_MINE = "w.job_id = :job_id and w.provider_task_id = :task_id and w.claim_token = :token and w.ended_at is null"
_KEYS = (sa.bindparam("job_id", type_=pg.UUID), sa.bindparam("token", type_=pg.UUID))

# One alert a task, however long it runs on.
ALERT_ONCE = statement(
    f"""
    with first as (
      update callkeeper.upstream_watches w set alerted_at = clock_timestamp()
      where {_MINE} and w.alerted_at is null
      returning w.job_id, w.provider_kind, w.provider_task_id
    )
    insert into callkeeper.alerts (subject, details)
    select 'still_running:' || job_id || ':' || provider_task_id,
      jsonb_build_object('kind', provider_kind, 'task_id', provider_task_id) from first
    on conflict (subject) do update
    set times = callkeeper.alerts.times + 1, last_at = clock_timestamp(), details = excluded.details, resolved_at = null
    returning subject
    """  # noqa: S608  # from constants above
).bindparams(*_KEYS)


def alert_once(connection: sa.Connection, watch: Watch) -> bool:
    """The job has ended and its task runs: tell an operator. False when that was done before."""
    return connection.execute(ALERT_ONCE, watch.binds).one_or_none() is not None


# Its ending may owe the same, under the same key: it is asked for once, by whoever delivers what is owed.
OWE_CANCEL = statement(
    f"""
    insert into callkeeper.consequences (key, job_id, effect, body)
    select 'cancel-upstream:' || w.job_id || ':' || w.provider_task_id, w.job_id, 'cancel_upstream',
      jsonb_build_object('kind', w.provider_kind, 'task_id', w.provider_task_id, 'handle', w.call_handle)
    from callkeeper.upstream_watches w
    where {_MINE}
    on conflict (key) do nothing
    """  # noqa: S608  # from constants above
).bindparams(*_KEYS)


def owe_cancel(connection: sa.Connection, watch: Watch) -> None:
    """The task runs on for nobody: its cancel is owed, unless it is already."""
    connection.execute(OWE_CANCEL, watch.binds)


END_WATCH = statement(
    f"""
    with ended as (
      update callkeeper.upstream_watches w set ended_at = clock_timestamp(), outcome = :outcome
      where {_MINE}
      returning w.job_id, w.call_generation, w.provider_task_id
    ), resolved as (
      update callkeeper.unexplained_spend s set resolved_at = clock_timestamp(), resolution = :resolution
      from ended
      where s.job_id = ended.job_id and s.call_generation = ended.call_generation and s.resolved_at is null
        and coalesce(s.provider_task_id, ended.provider_task_id) = ended.provider_task_id
        and cast(:resolution as text) is not null
    )
    select count(*) from ended
    """  # noqa: S608  # from constants above
).bindparams(*_KEYS, sa.bindparam("outcome", type_=sa.Text), sa.bindparam("resolution", type_=sa.Text))


def end(connection: sa.Connection, watch: Watch, outcome: str, *, resolution: str | None = None) -> bool:
    """Watch no longer. `resolution`: words that explain what was spent. False when somebody else ended it."""
    binds = {**watch.binds, "outcome": outcome, "resolution": resolution}
    return bool(connection.execute(END_WATCH, binds).scalar_one())


# The files and the end of the watch are one statement: nobody keeps them twice. No reservation is touched.
KEEP_STANDALONE = statement(
    f"""
    with ended as (
      update callkeeper.upstream_watches w set ended_at = clock_timestamp(), outcome = 'kept'
      where {_MINE}
      returning w.job_id, w.provider_kind, w.provider_task_id, w.call_generation
    ), kept as (
      insert into callkeeper.standalone_assets (job_id, user_id, provider_kind, provider_task_id, position, object_key,
        content_type, size_bytes, sha256, visibility, watermark)
      select e.job_id, j.user_id, e.provider_kind, e.provider_task_id, a.position, a.object_key, a.content_type,
        a.size_bytes, a.sha256, j.visibility, j.watermark
      from ended e join callkeeper.jobs j on j.id = e.job_id, jsonb_to_recordset(:assets) as a (
        position int, object_key text, content_type text, size_bytes bigint, sha256 text
      )
      on conflict (provider_kind, provider_task_id, position) do nothing
    ), resolved as (
      update callkeeper.unexplained_spend s
      set resolved_at = clock_timestamp(), resolution = 'came late; kept as a standalone asset'
      from ended
      where s.job_id = ended.job_id and s.call_generation = ended.call_generation and s.resolved_at is null
        and coalesce(s.provider_task_id, ended.provider_task_id) = ended.provider_task_id
    )
    select count(*) from ended
    """  # noqa: S608  # from constants above
).bindparams(*_KEYS, sa.bindparam("assets", type_=pg.JSONB))


def keep_standalone(connection: sa.Connection, watch: Watch, assets: Sequence[NewAsset]) -> bool:
    """The task ended well after its job had ended: its files are the user's, uncharged. False when done before."""
    rows = [
        {
            "position": position,
            "object_key": asset.object_key,
            "content_type": asset.content_type,
            "size_bytes": asset.size_bytes,
            "sha256": asset.sha256,
        }
        for position, asset in enumerate(assets)
    ]
    return bool(connection.execute(KEEP_STANDALONE, {**watch.binds, "assets": rows}).scalar_one())


STANDALONE = statement(
    """
    select object_key, content_type, size_bytes, sha256, visibility, watermark, created_at
    from callkeeper.standalone_assets where job_id = :job_id order by provider_task_id, position
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))


def standalone(connection: sa.Connection, job_id: UUID) -> list[Mapping[str, Any]]:
    """Files that came after the job had ended."""
    return [dict(row) for row in connection.execute(STANDALONE, {"job_id": job_id}).mappings()]
