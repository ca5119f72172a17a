"""Sends the fakes' webhooks, each vendor's in its own words, when their tasks end by the sandbox's clock."""

import asyncio
import heapq
import secrets
from collections import Counter
from collections.abc import Callable

import httpx

from providers.sandbox.letters import letter
from providers.sandbox.tasks import Clock, Task

BACKOFF = (1.0, 2.0, 4.0, 8.0, 16.0, 29.0)  # after which Replicate, too, gives up: about a minute
KIE_BACKOFF = (1.0, 2.0)  # KIE tries three times
FORGED = "whsec_" + "Zm9yZ2Vk" * 4  # not the secret of anybody


class Courier:
    """One background task over a heap of due deliveries. `poke` it when the clock was moved."""

    def __init__(self, clock: Clock, secret: str, base_of: Callable[[Task], str]) -> None:
        self.secret = secret
        self._clock, self._base_of = clock, base_of
        self._due: list[tuple[float, int, Task]] = []
        self._number = 0
        self._changed = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._client = httpx.AsyncClient(trust_env=False, timeout=5.0, follow_redirects=False)
        self.counts: Counter[str] = Counter()

    def plan(self, task: Task) -> None:
        """Deliver the task's end when it comes, as its script says."""
        if task.webhook is None or task.detail["webhook"] == "off":
            return
        late = float(task.detail["webhook_late"]) if task.detail["webhook"] == "late" else 0.0
        self._number += 1
        heapq.heappush(self._due, (task.ends_at + late, self._number, task))
        self._changed.set()

    def poke(self) -> None:
        self._changed.set()

    def clear(self) -> None:
        """Nothing is on its way any more, tries under way included."""
        self._due.clear()
        self.counts.clear()
        for sending in self._sending:
            sending.cancel()

    async def deliver_now(self, task: Task) -> None:
        """One attempt with the task as it is now, finished when the receiver has answered."""
        await self._attempt(task, f"msg_{secrets.token_hex(12)}")

    async def run(self) -> None:
        """Deliver until cancelled."""
        try:
            while True:
                self._changed.clear()
                wait = self._send_due()
                try:
                    await asyncio.wait_for(self._changed.wait(), wait)
                except TimeoutError:
                    continue
        finally:
            for sending in self._sending:
                sending.cancel()
            await self._client.aclose()

    def _send_due(self) -> float | None:
        while self._due:
            wait = self._due[0][0] - self._clock.now()
            if wait > 0:
                return wait
            _, _, task = heapq.heappop(self._due)
            if not task.told:
                task.told = True
                sending = asyncio.get_running_loop().create_task(self._deliver(task))
                self._sending.add(sending)
                sending.add_done_callback(self._sending.discard)
        return None

    async def _deliver(self, task: Task) -> None:
        delivery_id = f"msg_{secrets.token_hex(12)}"
        if task.detail["webhook"] == "twice":
            await self._attempt(task, delivery_id)
        for pause in (*(KIE_BACKOFF if task.kind == "kie" else BACKOFF), None):
            if await self._attempt(task, delivery_id) or pause is None:
                return
            await asyncio.sleep(pause)

    async def _attempt(self, task: Task, delivery_id: str) -> bool:
        secret = self.secret if task.detail["webhook"] != "forged" else FORGED
        body, headers = letter(task, self._clock.now(), self._base_of(task), secret=secret, delivery_id=delivery_id)
        try:
            response = await self._client.post(str(task.webhook), content=body, headers=headers)
        except httpx.HTTPError:
            self.counts["failed"] += 1
            return False
        self.counts["delivered" if response.is_success else "refused"] += 1
        return response.is_success
