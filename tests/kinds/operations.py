"""Every operation of every kind: what an app asks for, and what its row must hold when it has come home.

The sandbox's files are made from the task's id, so one expectation holds for every way home, to the byte.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from providers.registry import KINDS
from providers.sandbox import files, kie_llm
from providers.sandbox.kie_tasks import CREDITS
from providers.sandbox.world import canonical

RUN = 2  # seconds that a task takes, by the sandbox's clock
BASE = 7  # credits of every charge, whatever the provider metered
VERSION = "a" * 64
SAMPLE = "data:audio/mpeg;base64," + base64.b64encode(files.mp3("sample")).decode()
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Made:
    """What the provider made of one accepted create: the row's result, but for the places of its files."""

    media: Sequence[tuple[str, str, bytes]] = ()  # content type, extension, bytes
    text: str | None = None
    value: Any = None
    usage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Operation:
    """`request` as the kind's own model takes it. `script` is what the sandbox must do to make it."""

    kind: str
    name: str
    request: Mapping[str, Any]
    made: Callable[[str, Entry], Made]
    script: Mapping[str, Any] = field(default_factory=dict)
    needs_design: bool = False  # a preview at the provider, made by an earlier call
    lives: bool = True  # has a task that is polled; else the answer, or the id, is all there is
    answers: bool = False  # the create's answer is the outcome: there is no task to lose or to find

    @property
    def vendor(self) -> str:
        return self.kind.partition("-")[0]

    @property
    def sync(self) -> bool:
        return KINDS[self.kind].mode == "sync"

    @property
    def finds(self) -> bool:
        """Whether a create whose answer was lost is in some list."""
        return KINDS[self.kind].finds_lost and not self.answers and self.name != "voice_design"

    @property
    def downloads(self) -> bool:
        """Whether files are fetched from somewhere, after the provider said that they are there."""
        return not self.answers and self.name not in ("text", "json", "training", "voice_clone", "voice_save")

    @property
    def asks(self) -> bool:
        """Whether a poll sends a request. What is there once it is created, and is in no list, needs none."""
        return not self.answers and self.name != "voice_design"

    @property
    def calls_back(self) -> bool:
        return KINDS[self.kind].signs_callbacks

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def cost(usage: Mapping[str, Any]) -> int:
    """Credits by whatever the provider says it metered; each unit has a price of its own."""
    units = {
        "predict_time": 2, "media_seconds": 3, "characters": 1, "audio_seconds": 5, "input_tokens": 1,
        "output_tokens": 2, "prompt_tokens": 1, "completion_tokens": 2, "credits": 1, "cost": 100, "duration": 4,
    }  # fmt: skip
    return BASE + round(sum(float(usage.get(name, 0)) * price for name, price in units.items()))


def _png(task_id: str, number: int = 0) -> tuple[str, str, bytes]:
    return "image/png", "png", files.png(task_id, number)


def _mp4(task_id: str) -> tuple[str, str, bytes]:
    return "video/mp4", "mp4", files.mp4(task_id)


def _mp3(task_id: str, number: int = 0) -> tuple[str, str, bytes]:
    return "audio/mpeg", "mp3", files.mp3(task_id, number)


# Replicate

_GPU = {"predict_time": float(RUN), "total_time": float(RUN)}


def _trained(task_id: str, entry: Entry) -> Made:
    version = f"me/fox:{hashlib.sha256(task_id.encode()).hexdigest()}"
    weights = f"{entry['base']}/files/{task_id}/weights.tar"
    return Made(value={"version": version, "weights": weights}, usage=_GPU)


def _replicate(name: str, request: dict[str, Any], made: Callable[[str], Made], **script: Any) -> Operation:
    asked = {"input": {"prompt": "a fox"}, **request}
    return Operation("replicate-prediction", name, asked, lambda task_id, _: made(task_id), script)


REPLICATE = [
    _replicate("model", {"model": "acme/draw"}, lambda t: Made([_png(t)], usage=_GPU)),
    _replicate("version", {"version": f"acme/video:{VERSION}"}, lambda t: Made([_mp4(t)], usage=_GPU)),
    _replicate(
        "deployment", {"deployment": "acme/live"}, lambda t: Made([_png(t, n) for n in range(3)], usage=_GPU), files=3
    ),
    _replicate(
        "text", {"model": "acme/say", "output": "text"}, lambda _: Made(text="so it is", usage=_GPU), output=["so ", "it is"]
    ),
    _replicate("json", {"version": VERSION, "output": "json"}, lambda _: Made(value={"n": [1, 2]}, usage=_GPU), output={"n": [1, 2]}),
    Operation(
        "replicate-training",
        "training",
        {"version": f"acme/trainer:{VERSION}", "destination": "me/fox", "input": {"steps": 1}},
        _trained,
    ),
]  # fmt: skip

# ElevenLabs

_SAID = "Hello there."
_DESIGN = {"operation": "voice_design", "voice_description": "an old sailor", "auto_generate_text": True}


def _eleven(name: str, request: dict[str, Any], made: Callable[[str, Entry], Made], **more: Any) -> Operation:
    operation = request.pop("operation", name)
    return Operation("elevenlabs-async", name, {"operation": operation, **request}, made, **more)


def _designed(task_id: str, _: Entry) -> Made:
    ids = task_id.split(".")
    return Made([_mp3(one) for one in ids], value={"generated_voice_ids": ids})


def _voice(task_id: str, name: str, category: str) -> Made:
    return Made(value={"voice_id": task_id, "name": name, "category": category, "labels": {}})


def _aligned(*_: Any) -> Made:
    letters = [{"text": one, "start": at / 10, "end": (at + 1) / 10} for at, one in enumerate(_SAID)]
    words = [{"text": one, "start": at / 2, "end": (at + 1) / 2, "loss": 0.1} for at, one in enumerate(_SAID.split())]
    return Made(value={"characters": letters, "words": words, "loss": 0.1})


def _transcribed(task_id: str, _: Entry) -> Made:
    said = "these are the words of the sandbox"
    words = [
        {"text": one, "type": "word", "start": at / 2, "end": (at + 1) / 2, "logprob": -0.1}
        for at, one in enumerate(said.split())
    ]
    value = {
        "language_code": "eng", "language_probability": 0.99, "text": said, "words": words,
        "transcription_id": task_id, "audio_duration_secs": 1.04,
    }  # fmt: skip
    return Made(text=said, value=value, usage={"audio_seconds": 1.04})


def _eleven_sync(name: str, request: dict[str, Any], made: Callable[[str, Entry], Made]) -> Operation:
    return Operation("elevenlabs-sync", name, {"operation": name, **request}, made, answers=True)


ELEVENLABS = [
    _eleven(
        "dubbing",
        {"source_url": "https://example.com/talk.mp3", "target_lang": "es"},
        lambda t, _: Made([_mp3(t)], usage={"media_seconds": 1.04}),
    ),
    _eleven(
        "dubbing_video",
        {"operation": "dubbing", "source_url": "https://example.com/talk.mp4", "target_lang": "pt-BR"},
        lambda t, _: Made([_mp4(t)], usage={"media_seconds": 1.04}),
    ),
    _eleven(
        "dubbing_file",
        {"operation": "dubbing", "file": SAMPLE, "target_lang": "es"},
        lambda t, _: Made([_mp3(t)], usage={"media_seconds": 1.04}),
    ),
    _eleven("voice_clone", {"name": "Ann", "files": [SAMPLE]}, lambda t, _: _voice(t, "Ann", "cloned"), lives=False),
    _eleven("voice_design", dict(_DESIGN), _designed, lives=False),
    _eleven(
        "voice_save",
        {"voice_name": "Old Ann", "voice_description": "an old sailor", "generated_voice_id": "preview"},
        lambda t, _: _voice(t, "Old Ann", "generated"),
        lives=False,
        needs_design=True,
    ),
    _eleven("forced_alignment", {"file": SAMPLE, "text": _SAID}, _aligned, lives=False, answers=True),
    _eleven_sync(
        "speech", {"voice_id": "v1", "text": _SAID}, lambda t, _: Made([_mp3(t)], usage={"characters": len(_SAID)})
    ),
    _eleven_sync("sound_effects", {"text": "a bell"}, lambda t, _: Made([_mp3(t)], usage={"characters": 6})),
    _eleven_sync("transcription", {"model_id": "scribe_v2", "file": SAMPLE}, _transcribed),
]

# Chats

_TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]


def _chat(words: str, text: str, *, claude: bool, **more: Any) -> Made:
    asked, said = len(text) // 4 + 1, len(words) // 4 + 1
    if claude:
        return Made(text=words, usage={"input_tokens": asked, "output_tokens": said, **more})
    usage = {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
    return Made(text=words, usage=usage)


def _anthropic(_: str, entry: Entry) -> Made:
    text = canonical(entry["input"])
    made = _chat(f"sandbox reply {hashlib.sha256(text.encode()).hexdigest()[:16]}", text, claude=True)
    told = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "service_tier": "standard"}
    return Made(text=made.text, usage={**made.usage, **told})


def _anthropic_tool(task_id: str, entry: Entry) -> Made:
    made = _anthropic(task_id, entry)
    called = {"type": "tool_use", "id": "TOOL", "name": "look", "input": {}}
    return Made(text=made.text, value=[{"type": "text", "text": made.text}, called], usage=made.usage)


def _kie_chat(claude: bool) -> Callable[[str, Entry], Made]:
    def made(_: str, entry: Entry) -> Made:
        words = f"sandbox reply {entry['request_hash'][:16]}"
        return _chat(words, canonical(entry["input"]), claude=claude, credits=kie_llm.CREDITS)

    return made


_ASKED = [{"role": "user", "content": "Say it."}]
CHATS = [
    Operation(
        "anthropic-sync", "message", {"model": "claude-x", "max_tokens": 10, "messages": _ASKED}, _anthropic, answers=True
    ),
    Operation(
        "anthropic-sync",
        "tool",
        {"model": "claude-x", "max_tokens": 10, "messages": _ASKED, "tools": _TOOLS},
        _anthropic_tool,
        {"stop_reason": "tool_use"},
        answers=True,
    ),
    Operation("kie-llm", "claude", {"model": "claude-x", "messages": _ASKED, "max_tokens": 9}, _kie_chat(True), answers=True),
    Operation("kie-llm", "gpt", {"model": "gpt-x", "messages": _ASKED}, _kie_chat(False), answers=True),
]  # fmt: skip

# KIE's tasks

_SPENT = {"credits": CREDITS}
_FACE = {"image_url": "https://example.com/face.png", "audio_url": "https://example.com/voice.mp3"}
_SHOTS = [{"prompt": "one", "duration": 2}, {"prompt": "two", "duration": 3}]


def _kie(family: str, name: str, request: dict[str, Any], made: Callable[[str], Made], **script: Any) -> Operation:
    return Operation(f"kie-{family}", name, request, lambda task_id, _: made(task_id), script)


def _song(task_id: str) -> Made:
    tracks = [
        {"id": f"{task_id}-{n}", "title": "untitled", "tags": "", "modelName": "chirp", "duration": 2.0} for n in (0, 1)
    ]
    return Made([_mp3(task_id, n) for n in (0, 1)], value={"tracks": tracks})


KIE = [
    _kie("standard", "image", {"model": "nano-banana", "input": {"prompt": "a fox"}}, lambda t: Made([_png(t)], usage=_SPENT)),
    _kie("standard", "video", {"model": "wan/video", "input": {"prompt": "a fox"}}, lambda t: Made([_mp4(t)], usage=_SPENT)),
    _kie("standard", "audio", {"model": "elevenlabs/speech", "input": {"text": "Hi"}}, lambda t: Made([_mp3(t)], usage=_SPENT)),
    _kie(
        "standard", "text", {"model": "stt", "input": {"audio": "x"}, "output": "text"},
        lambda _: Made(text="so it is", usage=_SPENT), output={"resultObject": {"text": "so it is"}},
    ),
    _kie(
        "standard", "json", {"model": "stt", "input": {"audio": "x"}, "output": "json"},
        lambda _: Made(value={"n": 1}, usage=_SPENT), output={"resultObject": {"n": 1}},
    ),
    _kie("veo", "video", {"prompt": "a fox", "duration": 8}, lambda t: Made([_mp4(t)])),
    _kie("veo", "listed", {"prompt": "a fox", "model": "veo3"}, lambda t: Made([_mp4(t)]), shape="string"),
    _kie("suno", "song", {"prompt": "of a fox", "customMode": False, "instrumental": False, "model": "V4"}, _song),
    _kie("kontext", "image", {"prompt": "a fox"}, lambda t: Made([_png(t)])),
    _kie("kontext", "edit", {"prompt": "a fox", "inputImage": "https://example.com/f.png"}, lambda t: Made([_png(t)])),
    _kie("luma", "video", {"prompt": "a fox", "videoUrl": "https://example.com/v.mp4"}, lambda t: Made([_mp4(t)])),
    _kie("kling3", "video", {"prompt": "a fox"}, lambda t: Made([_mp4(t)], usage=_SPENT)),
    _kie("kling3", "shots", {"multi_shots": True, "sound": True, "multi_prompt": _SHOTS}, lambda t: Made([_mp4(t)], usage=_SPENT)),
    _kie("runway", "video", {"prompt": "a fox", "duration": 5}, lambda t: Made([_mp4(t)])),
    _kie("lip-sync", "avatar", {"model": "kling/ai-avatar-pro", "input": _FACE}, lambda t: Made([_mp4(t)], usage=_SPENT)),
]  # fmt: skip

# Videos elsewhere

_FRAME = {"frame_type": "first_frame", "image_url": {"url": "https://example.com/f.png"}}
_LOOK = {"avatar_id": "a1", "script": "Hello.", "voice_id": "v1"}


def _routed(task_id: str, _: Entry) -> Made:
    return Made([_mp4(task_id)], usage={"cost": 0.42, "is_byok": "false", "generation_id": f"gen-{task_id[-20:]}"})


def _shown(task_id: str, _: Entry) -> Made:
    return Made([_mp4(task_id)], usage={"duration": 2.04})


def _captioned(task_id: str, _: Entry) -> Made:
    words = f"1\n00:00:00,000 --> 00:00:02,000\n{task_id}\n".encode()
    return Made([_mp4(task_id), _mp4(task_id), ("text/plain", "txt", words)], usage={"duration": 2.04})


VIDEOS = [
    Operation("openrouter-video", "prompt", {"model": "acme/video", "prompt": "a fox"}, _routed),
    Operation("openrouter-video", "frame", {"model": "acme/video", "prompt": "a fox", "frame_images": [_FRAME]}, _routed),
    Operation("openrouter-video", "elsewhere", {"model": "acme/video", "prompt": "a fox"}, _routed, {"content": "redirect"}),
    Operation("heygen-video", "avatar", {**_LOOK, "title": "A fox"}, _shown),
    Operation("heygen-video", "image", {"type": "image", "image": {"type": "url", "url": "https://example.com/f.png"}}, _shown),
    Operation("heygen-video", "captions", {**_LOOK, "caption": {"style": "plain"}}, _captioned),
]  # fmt: skip

OPERATIONS: tuple[Operation, ...] = (*REPLICATE, *ELEVENLABS, *CHATS, *KIE, *VIDEOS)
