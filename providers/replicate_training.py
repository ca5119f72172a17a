"""Kind `replicate-training`: trainings at Replicate, which leave a new version in a destination model.

Creates are not idempotent there. A training whose id was lost is found again in the list by its base version, input,
time and destination (Replicate's HTTP API reference and its Python client).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field

from providers import replicate_api as api
from providers.contract import JSON, Account, Call, Callback, Failed, Kind, Missing, Mode, Outcome, Succeeded
from providers.replicate_api import HASH, NAME, POLL_DEADLINE, SEND_DEADLINE
from providers.replicate_find import search
from providers.replicate_words import outcome
from providers.replies import validated


class ReplicateTrainingRequest(BaseModel):
    """What an app submits: the version to train, as owner/name:hash, and the model that gets the result.

    The destination must exist and be the account's. Give every job one of its own: what a training leaves there is
    then its own beyond doubt.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str = Field(pattern=rf"^{NAME}:{HASH}$")
    destination: str = Field(pattern=rf"^{NAME}$")
    input: dict[str, JSON]


class ReplicateTraining:
    """The provider of kind `replicate-training`; holds no state."""

    request_model: type[BaseModel] = ReplicateTrainingRequest

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`endpoint` (trainings), `target` (owner/name:hash), `destination` and `output` (model)."""
        wanted = validated(ReplicateTrainingRequest, request)
        return {
            "endpoint": "trainings",
            "target": wanted.version,
            "destination": wanted.destination,
            "output": "model",
        }

    async def create(self, client: httpx.AsyncClient, account: Account, call: Call) -> str:
        """POST one training. AMBIGUOUS with `accepted_without_id` when it was taken and not named."""
        handle = self._frozen(call)
        model, _, version = str(handle["target"]).partition(":")
        wanted = validated(ReplicateTrainingRequest, call.request)
        body = {"destination": handle["destination"], "input": dict(wanted.input)}
        return await api.create(
            client, account, f"/models/{model}/versions/{version}/trainings", body, call.callback_url
        )

    async def poll(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> Outcome:
        """GET the training. A success is its version (owner/name:hash) and, unless signed, the address of its weights.

        Raises ProviderError when the answer is not a training, or is about another one.
        """
        handle = self._frozen(call)
        shown = await api.look(client, account, "trainings", task_id)
        if shown is None:
            return Missing()
        found = outcome(shown, {"output": "json"}, account.base_url)
        return trained(found, str(handle["destination"])) if isinstance(found, Succeeded) else found

    async def find(self, client: httpx.AsyncClient, account: Account, call: Call) -> Sequence[str]:
        """Trainings of this version with this input and destination, created in this call's window."""
        handle = self._frozen(call)
        return await search(
            api.pages(client, account, "trainings"),
            handle=handle,
            wanted=validated(ReplicateTrainingRequest, call.request).input,
            base_url=account.base_url,
            started_at=call.started_at,
            send_deadline=SEND_DEADLINE,
            collection="trainings",
            belongs=lambda listed: goes_to(listed, str(handle["destination"])),
        )

    async def cancel(
        self,
        client: httpx.AsyncClient,
        account: Account,
        call: Call,  # noqa: ARG002 - the contract's signature
        task_id: str,
    ) -> bool:
        """POST the cancel; a training that has ended stays as it is. False when Replicate does not know it."""
        return await api.cancel(client, account, "trainings", task_id)

    def parse_callback(
        self, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime
    ) -> Callback:
        """Verify by Standard Webhooks, then read the training's id. The rest of the body is not believed."""
        return api.callback(headers, body, secrets=secrets, now=now)

    def _frozen(self, call: Call) -> dict[str, JSON]:
        # Polls come without the request: what was frozen at intent is all they need.
        return dict(call.handle) if "endpoint" in call.handle else self.handle(call.request) | dict(call.handle)


def trained(found: Succeeded, destination: str) -> Succeeded | Failed:
    """The outcome of a training by its output. One that went elsewhere is somebody else's, and nobody's result here."""
    version = found.value.get("version") if isinstance(found.value, dict) else None
    if not isinstance(version, str) or not version:
        return Failed("result_wrong_type", "the training names no version", usage=found.usage)
    if version.partition(":")[0] != destination:
        return Failed("result_wrong_type", "the training's version is not in its destination", usage=found.usage)
    value = {"version": version}
    if _is_plain(found.value.get("weights")):
        value["weights"] = found.value["weights"]
    return Succeeded(value=value, usage=found.usage)


def goes_to(listed: Mapping[str, JSON], destination: str) -> bool | None:
    """Whether a listed training is for this destination; None when neither it nor a version it made says so."""
    shown, output = listed.get("destination"), listed.get("output")
    if isinstance(shown, str) and shown:
        return shown == destination
    version = output.get("version") if isinstance(output, dict) else None
    return version.partition(":")[0] == destination if isinstance(version, str) and version else None


def _is_plain(url: JSON) -> bool:
    """Whether an address may be kept in a row: one with a query may be signed, and is then a secret."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
    except ValueError:
        return False
    return parts is not None and parts.scheme in ("https", "http") and not parts.query and "@" not in parts.netloc


KINDS = (
    Kind(
        name="replicate-training",
        mode=Mode.ASYNC,
        provider=ReplicateTraining(),
        base_url="https://api.replicate.com/v1",
        send_deadline=SEND_DEADLINE,
        poll_deadline=POLL_DEADLINE,
        first_poll=timedelta(seconds=10),
        poll_every=timedelta(seconds=20),
        visibility_lag=timedelta(seconds=60),
        max_run=timedelta(hours=6),
        stale_after=timedelta(minutes=30),
        finds_lost=True,
        cancels=True,
        signs_callbacks=True,
        shapes=("model",),
        meter="GPU seconds",
    ),
)
