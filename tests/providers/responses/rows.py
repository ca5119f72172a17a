"""The table of answers that the files beside this one hold, and the way an answer takes: wire, parser, disposition.

A row is a JSON array: where it was asked (`kind[/variant] stage`), the HTTP status, the body (a text as it is, all else as
JSON), what it means, and headers, if any. Bodies are built from the vendors' documentation; the values are invented.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from actors.dispositions import Disposition, Stage, classify
from providers.contract import Account, AsyncProvider, Call, Failed, Missing, Running, Succeeded, SyncProvider
from providers.errors import ProviderError
from providers.http import make_client
from providers.registry import get_kind

KEY = "key-1"
TASK = "t_1"
STARTED = datetime(2026, 1, 1, 10, tzinfo=UTC)
SOUND = "data:audio/mpeg;base64,SUQzAwAAAAAAAA=="
WORDS = [{"role": "user", "content": "hello"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "kie-standard": {"model": "nano-banana-pro", "input": {"prompt": "x"}},
    "kie-standard/text": {"model": "captioner", "input": {"prompt": "x"}, "output": "text"},
    "kie-standard/json": {"model": "scorer", "input": {"prompt": "x"}, "output": "json"},
    "kie-veo": {"prompt": "x"},
    "kie-suno": {"prompt": "x", "customMode": False, "instrumental": False, "model": "V5"},
    "kie-kontext": {"prompt": "x"},
    "kie-luma": {"prompt": "x", "videoUrl": "https://files.example/v.mp4"},
    "kie-kling3": {"prompt": "x"},
    "kie-runway": {"prompt": "x"},
    "kie-lip-sync": {
        "model": "infinitalk/from-audio",
        "input": {"image_url": "https://files.example/i.png", "audio_url": "https://files.example/a.mp3"},
    },
    "kie-llm": {"model": "gpt-5-2", "messages": WORDS},
    "replicate-prediction": {"model": "acme/draw", "input": {"prompt": "x"}},
    "replicate-prediction/text": {"model": "acme/tell", "input": {"prompt": "x"}, "output": "text"},
    "replicate-prediction/json": {"model": "acme/tell", "input": {"prompt": "x"}, "output": "json"},
    "replicate-training": {
        "version": "acme/trainer:" + "0" * 64,
        "destination": "me/lora",
        "input": {"images": "https://files.example/i.zip"},
    },
    "elevenlabs-async": {"operation": "dubbing", "target_lang": "es", "source_url": "https://files.example/a.mp3"},
    "elevenlabs-async/clone": {"operation": "voice_clone", "name": "x", "files": [SOUND]},
    "elevenlabs-async/design": {"operation": "voice_design", "voice_description": "warm", "auto_generate_text": True},
    "elevenlabs-async/save": {
        "operation": "voice_save", "voice_name": "x", "voice_description": "warm", "generated_voice_id": "g_1",
    },
    "elevenlabs-async/alignment": {"operation": "forced_alignment", "file": SOUND, "text": "a"},
    "elevenlabs-sync": {"operation": "speech", "voice_id": "v_1", "text": "hello"},
    "elevenlabs-sync/transcription": {
        "operation": "transcription", "model_id": "scribe_v1", "source_url": "https://files.example/a.mp3",
    },
    "anthropic-sync": {"model": "claude-x", "max_tokens": 10, "messages": WORDS},
    "openrouter-video": {"model": "acme/film", "prompt": "x"},
    "heygen-video": {"type": "avatar", "avatar_id": "a_1", "script": "hello", "voice_id": "v_1"},
}  # fmt: skip
STAGES = {
    "create": Stage.CREATE, "sync": Stage.CREATE, "poll": Stage.POLL, "find": Stage.POLL, "cancel": Stage.SETTLE,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    asked: str
    stage: str
    status: int
    body: Any
    means: str
    headers: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    @property
    def kind(self) -> str:
        return self.asked.partition("/")[0]


def content_of(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


@cache
def table() -> tuple[Row, ...]:
    rows = []
    for path in sorted(Path(__file__).parent.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line and not line.startswith("#"):
                where, status, body, means, *more = json.loads(line)
                rows.append(Row(*where.split(" "), status, body, means, *more, place=f"{path.stem}:{number}"))  # type: ignore[call-arg]
    return tuple(rows)


async def _ask(asked: str, stage: str, client: httpx.AsyncClient) -> Any:
    provider, request = get_kind(asked.partition("/")[0]).provider, REQUESTS[asked]
    account = Account("test", "https://api.example/v1", "canary-key")
    call = Call(request, provider.handle(request), KEY, STARTED)
    if isinstance(provider, SyncProvider):
        return await provider.run(client, account, call)
    assert isinstance(provider, AsyncProvider)
    match stage:
        case "create":
            return await provider.create(client, account, call)
        case "poll":
            return await provider.poll(client, account, call, TASK)
        case "find":
            return await provider.find(client, account, call)
        case _:
            return await provider.cancel(client, account, call, TASK)


def answer(
    asked: str, stage: str, *, status: int, content: bytes, headers: Mapping[str, str], runner: asyncio.Runner
) -> Any:
    """What the kind's own code makes of one answer: a result, or the ProviderError that it raised. No other error."""

    async def main() -> Any:
        def wire(_request: httpx.Request) -> httpx.Response:
            return httpx.Response(status, headers=dict(headers), stream=httpx.ByteStream(content))

        async with make_client(transport=httpx.MockTransport(wire)) as client:
            try:
                return await _ask(asked, stage, client)
            except ProviderError as error:
                return error

    return runner.run(main())


def is_success(found: Any) -> bool:
    """Whether work counts as taken, done or found by this."""
    return isinstance(found, str | Succeeded) or (isinstance(found, list | tuple) and bool(found))


def disposition(stage: str, found: Any) -> Disposition:
    return classify(STAGES[stage], found)


def meaning(stage: str, found: Any) -> str:
    """In the words of the table."""
    match found:
        case str():
            return f"accepted {found}"
        case bool():
            return "taken" if found else "not_taken"
        case Succeeded():
            parts = [f"media={len(found.media)}"] if found.media else []
            parts += ["text"] if found.text is not None else []
            parts += ["value"] if found.value is not None else []
            return " ".join(["done", *parts])
        case Running(known=False):
            return f"{disposition(stage, found)} unknown_word"
        case Running(progress=progress):
            share = "" if progress is None else f" {progress:g}"
            return f"{disposition(stage, found)} running{share}"
        case Missing():
            return f"{disposition(stage, found)} missing"
        case Failed(code=code):
            return f"{disposition(stage, found)} {code}"
        case ProviderError():
            wait = "" if found.retry_after is None else f" wait={found.retry_after:g}"
            return f"{disposition(stage, found)} {found.code}{wait}"
        case _:
            return "found " + (",".join(found) or "nothing")
