"""How each operation is asked for: its path, its query, and a JSON body or a form, as ElevenLabs's Python client sends
them; and the one place that names the key's header.
"""

import json as jsonlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import singledispatch

import httpx

from providers.contract import JSON, Account
from providers.elevenlabs_files import part, plain
from providers.elevenlabs_find import mark
from providers.elevenlabs_requests import (
    Dubbing,
    ForcedAlignment,
    Operation,
    SoundEffects,
    Speech,
    Transcription,
    VoiceClone,
    VoiceDesign,
    VoiceSave,
)
from providers.http import MAX_BYTES, Part, Reply, request

KEY_HEADER = "xi-api-key"
POLL_DEADLINE = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request below the account's base URL."""

    path: str
    params: Mapping[str, str] | None = None
    json: JSON = field(default=None, repr=False)
    form: Sequence[Part] | None = None


async def ask(
    client: httpx.AsyncClient,
    account: Account,
    method: str,
    outgoing: Outgoing,
    *,
    deadline: timedelta = POLL_DEADLINE,
    max_bytes: int = MAX_BYTES,
) -> Reply:
    """Send it as the account. Raises ProviderError as `providers.http.request` does."""
    return await request(
        client,
        method,
        account.base_url.rstrip("/") + outgoing.path,
        deadline=deadline,
        headers={KEY_HEADER: account.api_key, "accept": "*/*"},
        json=outgoing.json,
        form=outgoing.form,
        params=outgoing.params,
        max_bytes=max_bytes,
    )


@singledispatch
def outgoing(wanted: Operation, call_key: str) -> Outgoing:
    """The one POST of an operation; `call_key` is planted where a list will show it."""
    raise TypeError(f"no request for {type(wanted).__name__} ({call_key})")


@outgoing.register
def _(wanted: Dubbing, call_key: str) -> Outgoing:
    fields = _given(wanted, {"file", "operation"}) | {"name": mark(call_key), "mode": "automatic"}
    return Outgoing("/v1/dubbing", form=[*_plain(fields), *_file(wanted.file)])


@outgoing.register
def _(wanted: VoiceClone, call_key: str) -> Outgoing:
    fields = {
        "name": wanted.name,
        "remove_background_noise": wanted.remove_background_noise,
        "description": f"{wanted.description} {mark(call_key)}".strip(),
        "labels": jsonlib.dumps(wanted.labels),
    }
    files = [part("files", url, number) for number, url in enumerate(wanted.files)]
    return Outgoing("/v1/voices/add", form=[*_plain(fields), *files])


@outgoing.register
def _(wanted: VoiceDesign, _call_key: str) -> Outgoing:
    # With `stream_previews` the answer holds ids only, and each preview is fetched as a file of its own.
    body = _given(wanted, {"operation", "output_format"}) | {"stream_previews": True}
    return Outgoing("/v1/text-to-voice/design", params={"output_format": wanted.output_format}, json=body)


@outgoing.register
def _(wanted: VoiceSave, call_key: str) -> Outgoing:
    described = f"{wanted.voice_description} {mark(call_key)}"
    return Outgoing("/v1/text-to-voice", json=_given(wanted, {"operation"}) | {"voice_description": described})


@outgoing.register
def _(wanted: ForcedAlignment, _call_key: str) -> Outgoing:
    return Outgoing("/v1/forced-alignment", form=[plain("text", wanted.text), *_file(wanted.file)])


@outgoing.register
def _(wanted: Speech, _call_key: str) -> Outgoing:
    body = _given(wanted, {"operation", "voice_id", "output_format"})
    return Outgoing(f"/v1/text-to-speech/{wanted.voice_id}", params={"output_format": wanted.output_format}, json=body)


@outgoing.register
def _(wanted: SoundEffects, _call_key: str) -> Outgoing:
    body = _given(wanted, {"operation", "output_format"})
    return Outgoing("/v1/sound-generation", params={"output_format": wanted.output_format}, json=body)


@outgoing.register
def _(wanted: Transcription, _call_key: str) -> Outgoing:
    return Outgoing("/v1/speech-to-text", form=[*_plain(_given(wanted, {"operation", "file"})), *_file(wanted.file)])


def _given(wanted: Operation, without: set[str]) -> dict[str, JSON]:
    return wanted.model_dump(mode="json", exclude_none=True, exclude=without)


def _plain(fields: Mapping[str, JSON]) -> list[Part]:
    return [plain(name, value) for name, value in fields.items()]


def _file(url: str | None) -> list[Part]:
    return [] if url is None else [part("file", url)]
