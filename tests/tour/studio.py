"""A fleet that renders small tours: how its providers behave, how a tour is ordered, and all that became of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from actors.runs import response, run
from actors.tour import orders, render
from actors.tour.media.probe import probe
from actors.tour.plan import Tour
from actors.tour.timeline.policy import SYNC
from providers.sandbox import Sandbox
from store.media import MediaStore
from tests.chaos.harness import Fleet, until

MODULES = ("actors.tour.jobs", "tests.tour.faults")
MODEL = "bytedance/seedance-1.5"
FILM = {"width": 160, "height": 90, "rate": 24}
QUICK = {"first_poll": 0.1, "poll_every": 0.3, "send_deadline": 3, "visibility_lag": 0.5}
WORD = "room "
PRICE = 2 * orders.SCENE_CREDITS  # of a scene


def script(*rules: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    return {"defaults": {"run_seconds": 0.2, "film": FILM, **defaults}, "rules": list(rules)}


def rule(route: str, contains: str, nth: Sequence[int] | None = None, **do: Any) -> dict[str, Any]:
    when = {"route": route, "contains": contains} | ({} if nth is None else {"nth": list(nth)})
    return {"when": when, "do": do}


# Two seconds of greeting and four of voice-over: as long as three scenes.
AS_LONG_AS_PLANNED = (
    rule("create", "greets", film={**FILM, "seconds": 2.0}),
    rule("message", '"model_id"', film={"seconds": 4.0}),
)


def environment(sandbox: Sandbox) -> dict[str, str]:
    kinds = {
        "openrouter-video": {"base_url": sandbox.openrouter_url, **QUICK},
        "heygen-video": {"base_url": sandbox.heygen_url, **QUICK},
        "elevenlabs-sync": {"base_url": sandbox.elevenlabs_url, "send_deadline": 10},
        "anthropic-sync": {"base_url": sandbox.url, "send_deadline": 10},
    }
    elsewhere = f"localhost:{sandbox.port}"
    return {
        "CALLKEEPER_KINDS": json.dumps(kinds),
        "CALLKEEPER_INSECURE_MEDIA_HOSTS": f"{sandbox.netloc},{elsewhere}",
        **dict.fromkeys(("OPENROUTER_API_KEY", "HEYGEN_API_KEY", "ELEVENLABS_API_KEY", "ANTHROPIC_API_KEY"), "good"),
    }


def plan(name: str, *, count: int = 3, optional: Sequence[int] = (), **changes: Any) -> dict[str, Any]:
    """Scenes of two seconds and about as much speech. `name` stands in every text, so that scripts can tell tours."""
    words = count * 2 * 2.6 - 5
    return {
        "title": name,
        "language": "en",
        "scenes": [
            {
                "id": f"s{number}",
                "prompt": f"{name} scene {number}",
                "camera": "push_in",
                "seconds": 2,
                "optional": number in optional,
            }
            for number in range(1, count + 1)
        ],
        "voice": {"voice_id": "v1", "script": f"{name} {WORD * int(words - 1)}".strip()},
        "avatar": {"avatar_id": "a1", "voice_id": "v2", "script": f"{name} greets you all here"},
        **changes,
    }


def tour(name: str, *, frame: Mapping[str, int] | None = None, photos: Mapping[str, str] | None = None, **changes: Any) -> Tour:  # fmt: skip
    return Tour.model_validate(
        {
            "plan": plan(name, **changes),
            "photos": photos or {},
            "frame": frame or FILM,
            "video_model": MODEL,
        }
    )


@dataclass
class Render:
    """One tour and all that became of it."""

    fleet: Fleet
    id: UUID
    name: str
    _ended: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> Mapping[str, Any]:
        if not self._ended:
            self._ended = until(self._read, within=90, what=f"the end of {self.name}, which is {self._now()},")
        return self._ended

    def _now(self) -> Mapping[str, Any]:
        return {one["step"]: one["status"] for one in self.fleet.db.once(run, self.id)["steps"]}

    def _read(self) -> Mapping[str, Any] | None:
        found = self.fleet.db.once(run, self.id)
        return found if found["status"] != "running" else None

    @property
    def fate(self) -> tuple[str, str, str | None]:
        return self.ended["status"], self.ended["quality"], self.ended["failure_code"]

    @property
    def warnings(self) -> set[str]:
        return {one["code"] for one in self.ended["warnings"]}

    @property
    def answer(self) -> dict[str, Any]:
        return response(self.ended)

    def steps(self) -> dict[str, str]:
        return {one["step"]: one["status"] for one in self.ended["steps"]}

    def result(self, step: str) -> Mapping[str, Any]:
        return next(one["result"] for one in self.ended["steps"] if one["step"] == step)

    def creates(self) -> int:
        return self.fleet.creates(self.name)

    def events(self, step: str) -> list[str]:
        job_id = next(one["job_id"] for one in self.ended["steps"] if one["step"] == step)
        return self.fleet.events(job_id)

    def settlements(self) -> int:
        return len(
            self.fleet.rows(
                "select 1 from callkeeper.run_events where run_id = :id"
                " and kind in ('completed', 'failed', 'timed_out', 'cancelled')",
                id=self.id,
            )
        )

    def notices(self) -> list[str]:
        """The keys of what the customer is told of a failure."""
        rows = self.fleet.rows(
            "select key from callkeeper.notices where run_id = :id and key like 'render%'", id=self.id
        )
        return [row["key"] for row in rows]

    def charged(self) -> int:
        row = self.fleet.one(
            "select coalesce(sum(u.committed_subscription + u.committed_topup), 0) as charged,"
            " coalesce(sum(u.reserved_subscription + u.reserved_topup) filter (where u.status = 'reserved'), 0) as held"
            " from callkeeper.usage_logs u join callkeeper.jobs j on j.id = u.job_id where j.run_id = :id",
            id=self.id,
        )
        assert row["held"] == 0
        return int(row["charged"])

    def film(self, folder: Path) -> float:
        """Its length in seconds; it is whole, and sound and picture are together."""
        store = MediaStore(self.fleet.env["CALLKEEPER_MEDIA_URL"])
        path = folder / str(self.id) / "film.mp4"  # in a folder of its own: a look at it leaves files behind
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(store.get(self.answer["result"]["assetId"]))
        seen = probe(path, "mov", check=lambda: None)
        assert seen.errors == 0
        assert seen.picture is not None
        assert seen.sound is not None
        assert seen.sound.loudest > 0
        assert abs(seen.picture.seconds - seen.sound.seconds) <= SYNC
        return seen.picture.seconds


def order(fleet: Fleet, asked: Tour, *, key: str | None = None, reuse: bool = False) -> Render:
    with fleet.db.engine.begin() as connection:
        made = render.start(
            connection, asked, user_id="ann", account_id=fleet.account, email="ann@example.com",
            idempotency_key=key or asked.plan.title, reuse=reuse,
        )  # fmt: skip
    return Render(fleet, made.run_id, asked.plan.title)
