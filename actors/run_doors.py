"""What a handler's context may ask of this process, carried out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors import steps as plan
from actors.rollout import Rollout
from actors.run_work import extension
from actors.runtime import Runtime
from actors.steps import Step
from actors.watermark import MARKED, Marked, apply
from store import rollout, run_outcomes, runs
from store.media import object_key
from store.models import ClaimedJob, NewAsset, NewJob, Place
from store.run_outcomes import StepOutcome


class Doors:
    """One job's. `generation` is that of the intent under which the handler runs: no two tries share a file's key."""

    def __init__(self, rt: Runtime, job: ClaimedJob, *, generation: int) -> None:
        self._rt = rt
        self._job = job
        self._generation = generation

    def outcomes(self, place: Place) -> Mapping[str, StepOutcome]:
        return self._rt.db.once(run_outcomes.outcomes, place)

    def fetch(self, object_key: str, path: Path) -> None:
        self._rt.media.fetch(object_key, path)

    def keep(self, position: int, path: Path, content_type: str, sha256: str) -> NewAsset:
        kept = Marked(sha256, path.stat().st_size, extension(content_type), content_type)
        kind = content_type.split("/", 1)[0]
        if self._job.watermark and kind in MARKED:
            kept = apply(path, kind, extension=kept.extension, content_type=content_type)
        key = object_key(
            self._job.lease.job_id,
            generation=self._generation,
            position=position,
            sha256=kept.sha256,
            extension=kept.extension,
        )
        with path.open("rb") as file:
            self._rt.submit(self._rt.media.put(key, file, content_type=kept.content_type)).result()
        return NewAsset(object_key=key, content_type=kept.content_type, size_bytes=kept.size, sha256=kept.sha256)

    def prepare(self, steps: Sequence[Step], place: Place) -> list[NewJob]:
        terms = self._rt.db.once(runs.terms, place.run_id)
        plan.check(steps, known=terms.steps)
        made = [
            plan.prepare(
                step,
                user_id=terms.user_id,
                account_id=terms.account_id,
                node_limit=terms.node_limit,
                run_id=place.run_id,
                watermark=terms.watermark and step.name == terms.result_step,
            )
            for step in steps
        ]
        return [replace(job, place=job.place and replace(job.place, round=place.round)) for job in made]

    def rollout(self, flag: str, run_id: Any) -> Rollout:
        return self._rt.flags.of(flag, run_id)

    def record(self, flag: str, place: Place, decision: Mapping[str, Any], *, did: bool) -> None:
        job_id = self._job.lease.job_id
        self._rt.db.once(rollout.record, flag, run_id=place.run_id, job_id=job_id, did=did, decision=decision)
