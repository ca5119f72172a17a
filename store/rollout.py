"""Rollout flags: changed while everything runs, and what was, or would have been, decided under each."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import CLOCK
from store.hygiene import clean_json
from store.tables import rollout_decisions, rollout_flags

FLAGS = ("provider_resume", "classified_retries", "salvage", "plan_repair")
MODES = ("off", "shadow", "canary", "on")


class Flag(NamedTuple):
    """`percent` counts only in a canary."""

    mode: str
    percent: int


READ_FLAGS = sa.select(rollout_flags.c.name, rollout_flags.c.mode, rollout_flags.c.percent)


def read(connection: sa.Connection) -> dict[str, Flag]:
    """The flags that somebody has set."""
    return {row.name: Flag(row.mode, row.percent) for row in connection.execute(READ_FLAGS)}


_SET = {
    "mode": sa.bindparam("mode", type_=sa.Text),
    "percent": sa.bindparam("percent", type_=sa.Integer),
}
SET_FLAG = (
    pg.insert(rollout_flags)
    .values(name=sa.bindparam("name"), changed_at=CLOCK, **_SET)
    .on_conflict_do_update(index_elements=[rollout_flags.c.name], set_={**_SET, "changed_at": CLOCK})
)


def set_flag(connection: sa.Connection, name: str, mode: str, *, percent: int = 0) -> None:
    """Raises ValueError for a flag, a mode or a share that does not exist."""
    if name not in FLAGS:
        raise ValueError(f"flag {name!r} does not exist: there are {', '.join(FLAGS)}")
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} does not exist: there are {', '.join(MODES)}")
    if not 0 <= percent <= 100:  # noqa: PLR2004  # it is a percentage
        raise ValueError(f"percent is {percent}: send 0 to 100")
    connection.execute(SET_FLAG, {"name": name, "mode": mode, "percent": percent})


GATES = sa.text("select * from callkeeper_audit.rollout_gates order by flag")


def gates(connection: sa.Connection) -> list[Mapping[str, Any]]:
    """Each flag with what became of the runs under it, and whether that speaks for promoting it."""
    return [dict(row) for row in connection.execute(GATES).mappings()]


RECORD_DECISION = sa.insert(rollout_decisions).values(
    flag=sa.bindparam("flag"),
    run_id=sa.bindparam("run_id"),
    job_id=sa.bindparam("job_id"),
    did=sa.bindparam("did", type_=sa.Boolean),
    decision=sa.bindparam("decision", type_=pg.JSONB),
)


def record(
    connection: sa.Connection, flag: str, *, run_id: UUID, job_id: UUID, did: bool, decision: Mapping[str, Any]
) -> None:
    """What was decided (`did`), or would have been."""
    binds = {"flag": flag, "run_id": run_id, "job_id": job_id, "did": did, "decision": clean_json(dict(decision))}
    connection.execute(RECORD_DECISION, binds)
