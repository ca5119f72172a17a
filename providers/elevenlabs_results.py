"""What ElevenLabs's good answers hold. Pure: a reply or an object goes in, an outcome comes out.

Source: ElevenLabs's API reference as its Python client types it; the cost header is the API's `character-cost`.
Raises ProviderError (AMBIGUOUS, `malformed_response`) for everything that is not what was asked for.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from providers.contract import JSON, Failed, Media, Outcome, Running, Succeeded
from providers.elevenlabs_words import is_about_content
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.replies import malformed
from providers.sniff import HEAD_BYTES, sniff
from providers.text import safe_text

JOINT = "."  # between the ids of a design's previews; no id of theirs has one
MAX_PREVIEWS = 16

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_LIVING = frozenset({"dubbing", "queued", "preparing"})
_LANGUAGE = re.compile(r"[A-Za-z0-9-]{2,30}")


def is_id(text: object) -> bool:
    """Whether this can safely stand in a path."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def audio(reply: Reply) -> Succeeded:
    """The sound that came as the body: whole by its declared length, and audio by its first bytes."""
    length = reply.headers.get("content-length", "")
    plain = reply.headers.get("content-encoding", "identity").lower() in ("", "identity")
    if plain and length.isascii() and length.isdigit() and length.lstrip("0") != (str(len(reply.body)).lstrip("0")):
        raise malformed(f"the audio is cut: {len(reply.body)} of {safe_text(length, 20)} bytes came", reply.status)
    found = sniff(reply.body[:HEAD_BYTES])
    if not reply.body or "audio" not in (found.family, *found.also):
        raise malformed(f"audio was asked for, {found.content_type if reply.body else 'nothing'} came", reply.status)
    return Succeeded(
        media=(Media(url="", kind="audio", content=reply.body),), usage=_characters(reply), provider_id=_named(reply)
    )


def transcript(reply: Reply) -> Succeeded:
    """A transcription: its text, and the whole answer as value. An empty text is one: silence."""
    body = reply.json()
    if not isinstance(body, dict) or not isinstance(body.get("text"), str) or not _all_objects(body.get("words") or []):
        raise malformed("not a transcription", reply.status)
    usage = _characters(reply) | _seconds("audio_seconds", body.get("audio_duration_secs"))
    transcription_id = body.get("transcription_id")
    named = safe_text(transcription_id, 128) if isinstance(transcription_id, str) and transcription_id else None
    return Succeeded(text=body["text"], value=body, usage=usage, provider_id=named or _named(reply))


def alignment(reply: Reply) -> Succeeded:
    """A forced alignment: characters and words with their times in seconds, and the loss."""
    body = reply.json()
    good = isinstance(body, dict) and all(
        isinstance(body.get(name), list) and _all_objects(body[name]) for name in ("characters", "words")
    )
    if not good:
        raise malformed("not an alignment", reply.status)
    return Succeeded(value=body, usage=_characters(reply), provider_id=_named(reply))


def previews(body: JSON) -> str | None:
    """The task id of a design: its previews' ids, joined. None when it names none that can stand in a path."""
    shown = body.get("previews") if isinstance(body, dict) else None
    if not isinstance(shown, list) or not shown or not _all_objects(shown):
        return None
    ids = [preview.get("generated_voice_id") for preview in shown[:MAX_PREVIEWS]]
    return JOINT.join(map(str, ids)) if all(map(is_id, ids)) else None


def design(task_id: str, base_url: str) -> Succeeded:
    """The outcome of a design, which its task id tells whole: each preview can be heard and kept by its id."""
    ids = task_id.split(JOINT)
    return Succeeded(
        media=[Media(f"{base_url}/v1/text-to-voice/{one}/stream", "audio", authorised=True) for one in ids],
        value={"generated_voice_ids": ids},
    )


def voice(body: Mapping[str, Any]) -> Succeeded:
    """A voice that exists. `requires_verification` true means that it cannot be used before its owner was verified."""
    checks = body.get("voice_verification")
    needed = checks.get("requires_verification") if isinstance(checks, dict) else None
    verified = checks.get("is_verified") if isinstance(checks, dict) else None
    value = {name: body[name] for name in ("voice_id", "name", "category", "labels") if body.get(name) is not None}
    if isinstance(needed, bool):
        value["requires_verification"] = needed and verified is not True
    return Succeeded(value=value)


def dubbing(body: Mapping[str, Any], *, language: str, base_url: str) -> Outcome:
    """What a dubbing's metadata says of it. Its bytes are behind the account's key, at the API itself."""
    status = body.get("status")
    if not isinstance(status, str) or not status:
        raise malformed("a dubbing without a status")
    if status == "failed":
        message = safe_text(body.get("error") or "the provider gave no reason")
        return Failed("content_policy" if is_about_content(message) else "task_failed", message)
    if status != "dubbed":
        return Running(None, safe_text(status, 40), known=status in _LIVING)
    spoken = _spoken(body.get("target_languages"), language)
    url = f"{base_url}/v1/dubbing/{body['dubbing_id']}/audio/{quote(spoken)}"
    about = body.get("media_metadata")
    about = about if isinstance(about, dict) else {}
    family = str(about.get("content_type")).partition("/")[0]
    media = Media(url, family if family in ("audio", "video") else "file", authorised=True)
    return Succeeded(media=(media,), usage=_seconds("media_seconds", about.get("duration")))


def _spoken(languages: JSON, wanted: str) -> str:
    """The language to fetch: the one asked for, or the only one there is, which may be the same in other letters."""
    shown = languages if isinstance(languages, list) else []
    if wanted in shown:
        return wanted
    if len(shown) == 1 and isinstance(shown[0], str) and _LANGUAGE.fullmatch(shown[0]):
        return shown[0]
    raise ProviderError(
        "output_missing",
        "dubbed, but not in the language asked for",
        fate=Fate.AMBIGUOUS,
        remedy=Remedy.RETRY,
        status=200,
    )


def _all_objects(items: JSON) -> bool:
    return isinstance(items, Sequence) and not isinstance(items, str) and all(isinstance(item, dict) for item in items)


def _characters(reply: Reply) -> dict[str, int | float | str]:
    cost = reply.headers.get("character-cost", "").strip()
    whole = cost.isascii() and cost.isdigit() and len(cost) < 12  # noqa: PLR2004
    return {"characters": int(cost)} if whole else {}


def _seconds(name: str, value: JSON) -> dict[str, int | float | str]:
    return {name: value} if isinstance(value, int | float) and not isinstance(value, bool) else {}


def _named(reply: Reply) -> str | None:
    said = reply.headers.get("request-id") or reply.headers.get("history-item-id")
    return safe_text(said, 128) if said else None
