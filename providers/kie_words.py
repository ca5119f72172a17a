"""What a task's record at KIE says of its run, family by family. Pure: data in, an outcome or an error out.

Sources: KIE's documentation of each family's record page; what it does not say of Luma, of Kling's early
spellings and of Suno's rare words is from public client code.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import httpx

from providers.contract import JSON, Failed, Media, Outcome, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.kie_failures import failure
from providers.kie_wire import whole
from providers.output import kind_of, urls_in
from providers.replies import malformed
from providers.text import safe_text

Data: TypeAlias = Mapping[str, JSON]
Reader: TypeAlias = Callable[[Data, Mapping[str, JSON]], Outcome]

_MAX_WORD = 40
_PERCENT = 100
_MAX_RESULT = 1024**2  # characters of a string of JSON: it holds addresses, or one model's answer
_EXPIRED = "the provider has removed the file"


def market_task(data: Data, handle: Mapping[str, JSON]) -> Outcome:
    """A task of the common endpoint: `state`, and a result that is a string of JSON."""
    word = _word(data.get("state"))
    if word == "success":
        return _market_result(decoded(data.get("resultJson")), data, handle)
    if word == "fail":
        return _failed(data)
    return _running(data, word, {"waiting", "queuing", "generating"})


def kling_task(data: Data, handle: Mapping[str, JSON]) -> Outcome:
    """The same, and what earlier versions said: other words, `status` for `state`, the URL beside the result."""
    word = _word(data.get("state") or data.get("status"))
    if word in ("success", "completed"):
        beside = _named(data, ("videoUrl", "video_url", "resultUrl", "result_url"))
        return _media(beside, data, handle) if beside else _market_result(decoded(data.get("resultJson")), data, handle)
    if word in ("fail", "failed", "error"):
        return _failed(data)
    return _running(data, word, {"waiting", "queuing", "generating"})


def runway_task(data: Data, handle: Mapping[str, JSON]) -> Outcome:
    """`state` in Runway's own spelling; a success whose file has expired is Failed as `output_lost`."""
    word = _word(data.get("state"))
    if word == "success":
        if whole(data.get("expireFlag")) == 1:
            return Failed("output_lost", _EXPIRED, usage=usage_in(data))
        return _media(_named(data.get("videoInfo"), ("videoUrl",)), data, handle)
    if word == "fail":
        return _failed(data)
    return _running(data, word, {"wait", "queueing", "generating"})


def veo_task(data: Data, handle: Mapping[str, JSON]) -> Outcome:
    """`successFlag`; the files are `resultUrls`, a list or a string of one."""
    return _flagged(data, handle, ("resultUrls",))


def kontext_task(data: Data, handle: Mapping[str, JSON]) -> Outcome:
    """`successFlag`; of the two URLs only the result's lives longer than ten minutes."""
    return _flagged(data, handle, ("resultImageUrl",))


def luma_task(data: Data, handle: Mapping[str, JSON]) -> Outcome:
    """`successFlag`, where 4 says that the result was made and its callback failed: a success if it is there."""
    if whole(data.get("successFlag")) == 4:  # noqa: PLR2004
        urls = _named(data.get("response"), ("resultUrls",))
        return _media(urls, data, handle) if urls else _failed(data)
    return _flagged(data, handle, ("resultUrls",))


def suno_task(data: Data, handle: Mapping[str, JSON]) -> Outcome:
    """`status`; the files are the tracks' `audioUrl`, and the value lists the tracks without their addresses.

    CALLBACK_EXCEPTION says that a callback was not delivered, at whatever stage: it is a success once every
    track is there, and until then the run goes on.
    """
    word = _word(data.get("status"))
    tracks = _tracks(data)
    ready = [track for track in tracks if urls_in(track.get("audioUrl"))]
    if word == "SUCCESS" or (word == "CALLBACK_EXCEPTION" and tracks and len(ready) == len(tracks)):
        found = _media([urls_in(track["audioUrl"])[0] for track in ready], data, handle)
        return Succeeded(media=found.media, value={"tracks": [_about(track) for track in ready]}, usage=found.usage)
    if word == "SENSITIVE_WORD_ERROR":
        message = safe_text(data.get("errorMessage") or "the words are not allowed")
        return Failed("content_policy", message, usage=usage_in(data))
    if word in ("CREATE_TASK_FAILED", "GENERATE_AUDIO_FAILED", "FAILED"):
        return _failed(data)
    living = {"PENDING", "TEXT_SUCCESS", "FIRST_SUCCESS", "PROCESSING", "CALLBACK_EXCEPTION"}
    return _running(data, word, living)


def decoded(value: JSON) -> JSON:
    """JSON that came as a string of JSON, or as it is; None for a string that is none, or too long to be one."""
    if not isinstance(value, str):
        return value
    if len(value) > _MAX_RESULT:
        return None
    return Reply(200, httpx.Headers(), value.encode("utf-8", "replace")).json()


def usage_in(data: Data) -> dict[str, int | float | str]:
    """`credits`, where the record says what the task took (it is in no documented schema, so it may be missing)."""
    spent = data.get("creditsConsumed")
    return {"credits": spent} if isinstance(spent, int | float) and not isinstance(spent, bool) else {}


def _word(value: JSON) -> str:
    if not isinstance(value, str) or not value:
        raise malformed("a task's record without a state")
    return value


def _running(data: Data, word: str, living: set[str]) -> Running:
    percent = whole(data.get("progress"))
    progress = None if percent is None else min(max(percent, 0), _PERCENT) / _PERCENT
    return Running(progress, safe_text(word, _MAX_WORD), known=word in living)


def _failed(data: Data) -> Failed:
    code = whole(data.get("failCode")) or whole(data.get("errorCode"))
    return failure(code, data.get("failMsg") or data.get("errorMessage"), usage=usage_in(data))


def _flagged(data: Data, handle: Mapping[str, JSON], names: Sequence[str]) -> Outcome:
    flag = whole(data.get("successFlag"))
    if flag is None:
        raise malformed("a task's record without a success flag")
    if flag == 1:
        return _media(_named(data.get("response"), names), data, handle)
    if flag in (2, 3):
        return _failed(data)
    return _running(data, str(flag), {"0"})


def _market_result(result: JSON, data: Data, handle: Mapping[str, JSON]) -> Succeeded | Failed:
    made = result.get("resultObject") if isinstance(result, dict) else None
    wanted = handle.get("output")
    if wanted == "json":
        value = result if made is None else made
        return Succeeded(value=value, usage=usage_in(data)) if value not in (None, "", [], {}) else _nothing()
    if wanted == "text":
        text = made.get("text") if isinstance(made, dict) else made
        if isinstance(text, str) and text:
            return Succeeded(text=text, usage=usage_in(data))
        return Failed("result_wrong_type", "text was asked for, and the result holds none") if made else _nothing()
    names = ("resultUrls", "videoUrl", "video_url", "audioUrl", "audio_url", "imageUrl", "resultUrl", "result_url")
    urls = _named(result, names) if isinstance(result, dict) else urls_in(result)
    if made and not urls:
        return Failed("result_wrong_type", "files were asked for, and the result names none", usage=usage_in(data))
    return _media(urls, data, handle)


def _named(holder: JSON, names: Sequence[str]) -> list[str]:
    """The URLs under the first of these names that holds any."""
    for name in names:
        value = holder.get(name) if isinstance(holder, dict) else None
        is_listed = isinstance(value, str) and value.lstrip().startswith("[")
        if urls := urls_in(decoded(value) if is_listed else value):
            return urls
    return []


def _media(urls: Sequence[str], data: Data, handle: Mapping[str, JSON]) -> Succeeded:
    if not urls:
        return _nothing()
    kind = handle.get("media_kind")
    media = [Media(url=url, kind=str(kind or kind_of(url))) for url in urls]
    return Succeeded(media=media, usage=usage_in(data))


def _nothing() -> Succeeded:
    """By the documentation that cannot last, so the caller looks again, and decides after how many looks to give up."""
    raise ProviderError(
        "output_missing", "succeeded, but no result is shown", fate=Fate.AMBIGUOUS, remedy=Remedy.RETRY, status=200
    )


def _tracks(data: Data) -> list[dict[str, JSON]]:
    response = data.get("response")
    tracks = response.get("sunoData") if isinstance(response, dict) else None
    return [track for track in tracks if isinstance(track, dict)] if isinstance(tracks, list) else []


def _about(track: Mapping[str, JSON]) -> dict[str, JSON]:
    return {
        name: safe_text(value, 200) if isinstance(value, str) else value
        for name in ("id", "title", "tags", "modelName", "duration")
        if isinstance(value := track.get(name), str | int | float)
    }
