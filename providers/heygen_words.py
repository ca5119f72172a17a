"""What HeyGen's answers mean. Pure: a reply or an object goes in, an outcome or an error comes out.

Sources: HeyGen's v3 API reference (statuses, failure codes, error bodies, presigned links) and its command line, which
is generated from the API's own description.
"""

import re
from collections.abc import Mapping

from providers.contract import JSON, Failed, Media, Outcome, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.replies import SERVER_ERROR, TIMEOUTS, is_success, malformed, rejected, unsettled
from providers.text import retry_after, safe_text

_BAD_REQUEST = 400
_LIVING = frozenset({"pending", "processing", "waiting", "generating", "queued"})
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_POLICY = re.compile(r"(?i)moderat|content.?policy|nsfw|prohibited|violat")
_UNKNOWN_VIDEO = frozenset({"not_found", "video_not_found"})
_INVALID = ("request_invalid", Remedy.CUSTOMER)
_NOT_FOUND = ("model_not_found", Remedy.CUSTOMER)
_THROTTLED = ("rate_limited", Remedy.THROTTLED)
IN_PROGRESS = "request_in_progress"
# A code in the body says more than the status.
_BY_CODE: Mapping[str, tuple[str, Remedy]] = {
    "invalid_parameter": _INVALID,
    "validation_error": _INVALID,
    "download_failed": _INVALID,
    "moderation": ("content_policy", Remedy.CUSTOMER),
    "unauthorized": ("provider_auth_invalid", Remedy.OPERATOR),
    "insufficient_credit": ("provider_credits_exhausted", Remedy.OPERATOR),
    "forbidden": ("provider_forbidden", Remedy.OPERATOR),
    # A look or a voice of somebody else's: no operator can change that.
    "resource_access_denied": ("provider_forbidden", Remedy.CUSTOMER),
    "not_found": _NOT_FOUND,
    "avatar_not_found": _NOT_FOUND,
    "voice_not_found": _NOT_FOUND,
    "video_not_found": _NOT_FOUND,
    "conflict": ("request_conflict", Remedy.RETRY),
    "payload_too_large": ("request_too_large", Remedy.CUSTOMER),
    "rate_limit_exceeded": _THROTTLED,
    "quota_exceeded": _THROTTLED,
}
_BY_STATUS: Mapping[int, tuple[str, Remedy]] = {
    _BAD_REQUEST: _INVALID,
    401: _BY_CODE["unauthorized"],
    402: _BY_CODE["insufficient_credit"],
    403: _BY_CODE["forbidden"],
    404: _NOT_FOUND,
    409: _BY_CODE["conflict"],
    413: _BY_CODE["payload_too_large"],
    422: _INVALID,
    429: _THROTTLED,
}


def own_error(reply: Reply) -> Mapping[str, JSON] | None:
    """The error as HeyGen writes it, or None when somebody on the way may have written the body.

    It may come under HTTP 200 as well: older endpoints answer that way.
    """
    body = reply.json()
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return None
    return error if any(isinstance(error.get(name), str) for name in ("code", "message")) else None


def is_unknown_video(reply: Reply) -> bool:
    """Whether HeyGen itself says that it does not know the video."""
    error = own_error(reply)
    return error is not None and (reply.status == 404 or error.get("code") in _UNKNOWN_VIDEO)  # noqa: PLR2004


def refusal(reply: Reply) -> ProviderError:
    """The error for a reply that is not the one asked for.

    REJECTED only where HeyGen itself says that it did not take the request: with 4xx and an error body of its own, or
    with a known error code under 2xx. `request_in_progress` is AMBIGUOUS: a request under the same key is being worked
    on, and it can only be ours. A page of somebody else's, a timeout status and every 5xx leave it open: AMBIGUOUS.
    """
    error, wait = own_error(reply), retry_after(reply.headers.get("retry-after"))
    if error is None:
        return unsettled(reply, wait=wait)
    code = error.get("code")
    words = safe_text(": ".join(str(error[name]) for name in ("code", "message") if error.get(name)))
    if code == IN_PROGRESS:
        return ProviderError(
            "request_in_progress",
            words,
            fate=Fate.AMBIGUOUS,
            remedy=Remedy.RETRY,
            status=reply.status,
            retry_after=wait,
        )
    known = _BY_CODE.get(code) if isinstance(code, str) else None
    refused = _BAD_REQUEST <= reply.status < SERVER_ERROR and reply.status not in TIMEOUTS
    if not refused and not (is_success(reply) and known):
        return unsettled(reply, wait=wait, words=words)
    verdict = known or _BY_STATUS.get(reply.status, ("request_refused", Remedy.NOBODY))
    if verdict == _INVALID and _POLICY.search(words):
        verdict = _BY_CODE["moderation"]
    return rejected(reply, verdict, words, wait=wait)


def task_id_in(video: JSON) -> str | None:
    """The video's id, when it is one that can safely stand in a path. A create calls it `video_id`, a poll `id`."""
    for name in ("video_id", "id"):
        task_id = video.get(name) if isinstance(video, dict) else None
        if isinstance(task_id, str) and _TASK_ID.fullmatch(task_id):
            return task_id
    return None


def outcome(video: Mapping[str, JSON], handle: Mapping[str, JSON]) -> Outcome:
    """What a video object says of its run. Whatever is neither completed nor failed is in progress, by the reference.

    Raises ProviderError (`output_missing`, RETRY) for a completed video without a link: the caller looks again, and
    decides after how many looks to give up.
    """
    status = video.get("status")
    if not isinstance(status, str) or not status:
        raise malformed("a video without a status")
    if status == "completed":
        media = _media(video, captioned=handle.get("captioned") is True)
        if not media:
            raise ProviderError(
                "output_missing",
                "completed, but no link is shown",
                fate=Fate.AMBIGUOUS,
                remedy=Remedy.RETRY,
                status=200,
            )
        return Succeeded(media=media, usage=_usage(video))
    if status == "failed":
        said = [str(video[name]) for name in ("failure_code", "failure_message") if video.get(name)]
        message = safe_text(": ".join(said) or "the provider gave no reason")
        return Failed("content_policy" if _POLICY.search(message) else "task_failed", message, usage=_usage(video))
    return Running(word=safe_text(status, 40), known=status in _LIVING)


def _media(video: Mapping[str, JSON], *, captioned: bool) -> list[Media]:
    """The video, then, if captions were asked for, the one they are drawn into and their file. Links are presigned."""
    wanted = [("video_url", "video")]
    if captioned:
        wanted += [("captioned_video_url", "video"), ("subtitle_url", "file")]
    links = [(video.get(name), kind) for name, kind in wanted]
    if not (isinstance(links[0][0], str) and links[0][0]):
        return []
    return [Media(url=url, kind=kind) for url, kind in links if isinstance(url, str) and url]


def _usage(video: Mapping[str, JSON]) -> dict[str, int | float | str]:
    """`duration` in seconds, fractions included."""
    duration = video.get("duration")
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return {"duration": duration}
    return {}
