"""One job of one operation, from its submit to what must be true when it has ended."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from actors import job_type
from providers.registry import KINDS
from store.media import object_key
from tests.kinds.operations import OPERATIONS, RUN, Made, Operation, cost
from tests.kinds.words import Do
from tests.kinds.world import Crash, World

PRICE = 500
OPEN = ("queued", "running", "waiting")
_ROUNDS = 30


def _as_asked(asked: Any) -> Any:
    return asked.model_dump(mode="json", exclude_none=True)


for _kind in {operation.kind: None for operation in OPERATIONS}:
    _model = KINDS[_kind].provider.request_model
    for _name, _more in (("", {}), ("large-", {"queue": "large"}), ("again-", {"retry_safe": True})):
        job_type(f"priced-{_name}{_kind}", request=_model, kind=_kind, price=PRICE, cost=cost, **_more)(_as_asked)


class Play:
    """Drives a job by messages, polls and passes. Every `ends_*` checks the whole of what was left behind."""

    def __init__(self, world: World, operation: Operation) -> None:
        self.world, self.operation = world, operation
        self.kind = operation.kind
        self.job_id: UUID
        self.earlier: list[str] = []  # on the bill, and not this job's
        self.preview = ""

    # Setting the scene

    def script(self, *rules: tuple[str, Do], webhook: str = "off", **defaults: Any) -> None:
        """`rules` are (route, what to do), in their order; a `nth` in one is a list of which requests it is for."""
        if self.operation.needs_design and not self.earlier:
            self._design()
        made = []
        for route, do in rules:
            nth = {"nth": do["nth"]} if "nth" in do else {}
            made.append({"when": {"route": route, **nth}, "do": {name: do[name] for name in do if name != "nth"}})
        start = {"run_seconds": RUN, "webhook": webhook, **self.operation.script, **defaults}
        self.world.sandbox.script({"defaults": start, "rules": made})

    @property
    def asking(self) -> str:
        """The route of the request that is paid for."""
        return "message" if self.operation.sync else "create"

    def submit(self, variant: str = "") -> None:
        request = dict(self.operation.request)
        if self.operation.needs_design:
            request["generated_voice_id"] = self.preview
        self.job_id = self.world.submit(f"priced-{variant}{self.kind}", request)

    def _design(self) -> None:
        answer = self.world.control.post(
            "/v1/text-to-voice/design", json={"voice_description": "earlier"}, headers={"xi-api-key": "good"}
        )
        self.preview = answer.json()["previews"][0]["generated_voice_id"]
        self.earlier = [entry["task_id"] for entry in self.world.sandbox.bill()]

    # Driving

    @property
    def row(self) -> Mapping[str, Any]:
        return self.world.job(self.job_id)

    @property
    def status(self) -> str:
        return str(self.row["status"])

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    def start(self) -> None:
        """Submit and run what that woke."""
        self.submit()
        self.world.work()

    def run_out(self) -> None:
        """By the provider's clock the task has ended."""
        self.world.sandbox.advance(RUN + 1)

    def go_home(self, *, times: int = 1, rounds: int = _ROUNDS) -> None:
        """Messages and polls, whatever is due and whatever would be later, until the job has ended."""
        for _ in range(rounds):
            self.world.work(times=times)
            if not self.is_open:
                return
            self.world.pass_time()
            self.world.poll()
        self.world.work(times=times)

    def pass_home(self) -> None:
        """The same by the minute's passes alone."""
        for _ in range(_ROUNDS):
            self.world.pass_time()
            self.world.passes()
            if not self.is_open:
                return

    def rounds(self, times: int) -> None:
        """So many looks, each when it is due."""
        for _ in range(times):
            self.world.pass_time()
            self.world.poll()
            self.world.work()

    def until_crash(self, point: str, variant: str = "") -> bool:
        """Go until the process dies at a point; False when it never comes there."""
        self.world.crash_at(point)
        with suppress(Crash):
            self.submit(variant)
            self.world.work()
            self.run_out()
            self.go_home()
            return False
        self.world.forget_gates()
        return True

    # Seeing

    def bill(self) -> list[Mapping[str, Any]]:
        """What the provider accepted for this job."""
        return [entry for entry in self.world.sandbox.bill() if entry["task_id"] not in self.earlier]

    def events(self) -> list[str]:
        return [event["kind"] for event in self.world.events(self.job_id)]

    def alerts(self) -> list[str]:
        return [row["subject"] for row in self.world.rows("select subject from callkeeper.alerts order by subject")]

    def says_of_upstream(self) -> bool:
        """The terminal event tells what becomes of the work at the provider."""
        told = self.world.events(self.job_id)[-1]["data"]["upstream"]
        assert told == ("cancel_owed" if KINDS[self.kind].cancels else "left_running")
        return True

    def told(self, times: int = 1) -> list[int]:
        """How the callbacks about this job were answered, once there are so many."""
        self.world.door.until_told(self.job_id, times)
        return [answer for _, _, _, answer in self.world.door.about(self.job_id)]

    def letters(self) -> list[tuple[str, dict[str, str], bytes]]:
        return [(path, headers, body) for path, headers, body, _ in self.world.door.about(self.job_id)]

    def credits(self) -> tuple[str, int]:
        row = self.world.one(
            "select status, committed_subscription + committed_topup as charged from callkeeper.usage_logs"
            " where job_id = :id",
            id=self.job_id,
        )
        return row["status"], row["charged"]

    def assets(self) -> list[dict[str, Any]]:
        return self.world.rows(
            "select position, object_key, content_type, size_bytes, sha256 from callkeeper.assets where job_id = :id"
            " order by position",
            id=self.job_id,
        )

    # Ends

    def ends_well(self, *, attempt: int = 1, creates: int = 1) -> None:
        """Completed, with exactly what the provider made, at exactly what it metered; and nothing moves any more."""
        row = self.row
        assert (row["status"], row["error_code"], row["error_message"]) == ("completed", None, None)
        assert (row["provider_kind"], row["progress"]) == (self.kind, 1.0)
        assert (row["visibility"], row["watermark"], row["finished_at"] is None) == ("public", False, False)
        bill = self.bill()
        assert len(bill) == creates
        made = self.operation.made(bill[-1]["task_id"], {**bill[-1], "base": self.world.sandbox.url})
        assert _masked(row["result"]) == self._result(row, made)
        self._has_files(row, made)
        assert self.credits() == ("committed", cost(made.usage))
        known = self.world.rows(
            "select provider_task_id from callkeeper.call_receipts where job_id = :id", id=self.job_id
        )
        assert len(known) == (0 if self.operation.name == "forced_alignment" else 1)
        self._is_over("completed", attempt)

    def ends_badly(self, code: str, *, creates: int, attempt: int = 1, status: str = "failed") -> None:
        """Ended with this code, refunded, with nothing kept; and nothing moves any more."""
        row = self.row
        assert (row["status"], row["error_code"], row["result"]) == (status, code, None), row["error_message"]
        assert row["error_message"]
        assert len(self.bill()) == creates
        assert self.credits() == ("refunded", 0)
        assert self.assets() == []
        self._is_over(status, attempt)

    def _is_over(self, status: str, attempt: int) -> None:
        row, events = self.row, self.events()
        assert row["attempt"] == attempt
        assert events.count(status) == 1
        assert events[-1] == status
        assert self.world.violations() == []
        billed = len(self.bill())
        self.world.deliver_again()
        self.world.pass_time()
        self.world.poll()
        assert (self.row, self.events(), len(self.bill())) == (row, events, billed), "what has ended has ended"
        assert self.world.violations() == []

    def _result(self, row: Mapping[str, Any], made: Made) -> Mapping[str, Any]:
        media = [
            {"object_key": key, "content_type": content_type, "size_bytes": len(body), "sha256": _sha(body)}
            for (content_type, _, body), key in zip(made.media, self._keys(row, made.media), strict=True)
        ]
        whole = {"usage": dict(made.usage), "media": media, "text": made.text, "value": made.value}
        return {name: value for name, value in whole.items() if name == "usage" or value not in (None, [])}

    def _keys(self, row: Mapping[str, Any], media: Sequence[tuple[str, str, bytes]]) -> Iterator[str]:
        for position, (_, extension, body) in enumerate(media):
            yield object_key(
                row["id"], generation=row["call_generation"], position=position, sha256=_sha(body), extension=extension
            )

    def _has_files(self, row: Mapping[str, Any], made: Made) -> None:
        assets = self.assets()
        assert [(one["position"], one["content_type"], one["sha256"]) for one in assets] == [
            (position, content_type, _sha(body)) for position, (content_type, _, body) in enumerate(made.media)
        ]
        for asset, (_, _, body) in zip(assets, made.media, strict=True):
            assert self.world.rt.media.get(asset["object_key"]) == body


def _sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _masked(result: Any) -> Any:
    """Without the names that a model gives to its calls of tools, which are on no bill."""
    value = result.get("value") if isinstance(result, dict) else None
    if not (isinstance(value, list) and value and isinstance(value[-1], dict) and value[-1].get("type") == "tool_use"):
        return result
    return {**result, "value": [*value[:-1], {**value[-1], "id": "TOOL"}]}
