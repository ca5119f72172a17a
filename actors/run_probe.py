"""Runs by the protocol of all probes: running, succeeded, failed, missing, or continued as another run."""

import asyncio
from uuid import UUID

from actors.probe import Found, Verdict, follow
from store import run_watch
from store.engine import Database


class RunProbe:
    """Asks the rows. A run that came to nothing and whose key was used again continues as the run that has it now."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.last = ""  # what was asked about last

    async def look(self, at: str) -> Verdict:
        self.last = at
        outlook = await asyncio.to_thread(self._db.once, run_watch.outlook, UUID(at))
        if outlook is None:
            return Verdict(Found.MISSING, "run_not_found", f"there is no run {at}")
        if outlook.status == "running":
            return Verdict(Found.RUNNING)
        if outlook.status == "completed":
            return Verdict(Found.SUCCEEDED)
        if outlook.continued_as is not None:
            return Verdict(Found.CONTINUED, continued_as=str(outlook.continued_as))
        return Verdict(Found.FAILED, outlook.failure_code or outlook.status)


def continued_as(db: Database, run_id: UUID) -> tuple[UUID, Verdict] | None:
    """The run that this one goes on as, and what became of that; None when it goes on as itself. Blocks."""
    probe = RunProbe(db)
    verdict = asyncio.run(follow(probe, str(run_id)))
    return None if probe.last == str(run_id) else (UUID(probe.last), verdict)
