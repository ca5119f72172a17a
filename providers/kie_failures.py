"""Why a task at KIE failed. Its codes do not tell refused content from an outage, so the text is read, too.

Sources: KIE's documentation (codes of failed tasks) and texts of failed tasks seen in public client code.
"""

import re
from collections.abc import Mapping

from providers.contract import JSON, Failed
from providers.text import safe_text

CONTENT = re.compile(
    r"(?i)\bflagged\b|\bnsfw\b|safety system|sensitive (?:word|content)|inappropriate content|content polic"
    r"|copyright|public figure|input was rejected|\bprohibited\b|rejected by flow"
)
_PARAMETER = re.compile(r"(?i)not within the range|allowed options|expected \[|cannot be empty")

_SOMEBODYS_WORK = 413
_UNREACHABLE = 451
_INVALID = frozenset({400, 422})


def failure(code: int | None, words: JSON, *, usage: Mapping[str, int | float | str] | None = None) -> Failed:
    """The failed outcome for a task's code and text, either of which may be missing.

    `content_policy`, `input_unreachable` and `request_invalid` where one of them says so, else `task_failed`,
    which covers KIE's own outages: it is never blamed on the customer for want of words.
    """
    message = safe_text(words or "the provider gave no reason")
    if code == _SOMEBODYS_WORK or CONTENT.search(message):
        reason = "content_policy"
    elif code == _UNREACHABLE:
        reason = "input_unreachable"
    elif code in _INVALID or _PARAMETER.search(message):
        reason = "request_invalid"
    else:
        reason = "task_failed"
    return Failed(reason, message, usage=usage or {})
