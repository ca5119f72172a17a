"""What the sandbox shall do: a JSON document, and the director that reads it.

A script has `defaults` (actions for every request) and ordered `rules`. For each request the first rule
whose `when` holds is taken, and its `do` is laid over the defaults; no other rule is looked at.

    {"seed": 7,
     "defaults": {"run_seconds": 2, "latency": [0.01, 0.05]},
     "rules": [
       {"name": "lost reply", "when": {"route": "create", "nth": [1]}, "do": {"accept_then": "drop"}},
       {"when": {"route": "create", "probability": 0.1},
        "do": {"reply": {"status": 429, "body": {"detail": "Your rate limit resets in ~3s.",
        "status": 429}}}},
       {"when": {"route": "create", "contains": "a red fox"}, "do": {"fail": "NSFW content detected"}},
       {"when": {"route": "download", "nth": [1, 2]}, "do": {"download": "truncated", "fraction": 0.9}}]}

Routes: `create` (a task, a video, or a voice), `poll`, `list`, `cancel`, `download`, `message` (whatever is answered
in one piece: a message or chat, speech, a sound, a transcription), `any`. `nth` counts from 1, among the
requests that reached this rule with its route and text. `contains` looks into the request's input (for poll,
cancel and download: into the input of the task they name) as JSON with sorted keys; a form counts as JSON, its
files by size and digest. `probability` is drawn from a generator seeded by `seed`. Times are in
seconds; a pair is a uniform range.
"""

import random
from collections import Counter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Route = Literal["create", "poll", "list", "cancel", "download", "message"]
Span = float | tuple[float, float]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Reply(Strict):
    """A canned response. A text body that starts with `<` is sent as HTML, other text as plain; None sends
    no body.
    """

    status: int = Field(ge=200, le=599)
    body: Any = None
    headers: dict[str, str] = {}


class Film(Strict):
    """Media made for the occasion: `stretch` times as long as was asked for, or `seconds` long. Sizes in pixels."""

    width: int = Field(default=320, ge=64, le=1920, multiple_of=2)
    height: int = Field(default=180, ge=36, le=1080, multiple_of=2)
    rate: int = Field(default=24, ge=5, le=60)
    stretch: float = Field(default=1.0, gt=0, le=4)
    seconds: float | None = Field(default=None, gt=0, le=60)
    sound: bool | None = None  # by default an avatar has one, and a scene none
    sound_lag: float = Field(default=0.0, ge=0, le=5)  # seconds of silence before it is heard
    sound_extra: float = Field(default=0.0, ge=-5, le=5)  # seconds by which it is longer than the picture
    black: bool = False
    frozen: bool = False


class Actions(Strict):
    """What happens to a request, and to the task it creates. Everything has a harmless default."""

    latency: Span = 0.0  # before the request is looked at
    reply_delay: Span = 0.0  # after it was accepted and billed, before the response
    reply: Reply | None = None  # answer this instead; nothing is accepted or billed
    refuse: Literal["drop", "hang"] | None = None  # no answer at all; nothing is accepted or billed
    accept_then: Literal["drop", "hang", "cut"] | Reply | None = None  # billed first; `cut` sends half of the response

    created_status: Literal[201, 202] = 201
    run_seconds: Span = 0.0
    fail: str | None = None  # the run ends failed, with this text as its error
    aborted: bool = False  # the run ends with the word `aborted`; at OpenRouter `expired`
    stopped: bool = False  # OpenRouter: the run ends with the word `cancelled`
    succeed_without_output: bool = False
    output: Any = None  # this value as output, instead of files
    shape: Literal["list", "string", "object", "data_url"] = "list"  # how files are put into the output
    files: int = Field(default=1, ge=1, le=16)
    result_life: float | None = None  # after the end: input {}, output null, data_removed, files 404
    hidden_version: bool = False

    webhook: Literal["on_completion", "off", "early", "twice", "late", "forged", "unsigned"] = "on_completion"
    webhook_late: float = 5.0  # how late `late` is

    word: str | None = None  # poll: this status word instead of the true one
    list_off: bool = False  # list: always empty
    list_lag: float = 0.0  # list: a task shows up only this long after its creation

    polling_url: Literal["relative", "absolute"] = "relative"  # OpenRouter's create
    copies: bool = True  # OpenRouter: a completed job has `urls` and `expires_at`, too
    content: Literal["here", "redirect"] = "here"  # OpenRouter: from the content endpoint, or from storage elsewhere
    unknown_for: float = 0.0  # HeyGen's poll: 404 this long after the create
    link_life: float = 7 * 86_400.0  # HeyGen: a link is good this long after it was shown
    ignores_key: bool = False  # HeyGen's create: a repeated key makes another video

    download: Literal["ok", "truncated", "short", "wrong_type", "gone", "unsized"] = "ok"
    fraction: float = Field(default=0.5, ge=0, lt=1)  # of the file that `truncated` and `short` send

    film: Film | None = None  # OpenRouter, HeyGen, ElevenLabs speech: this instead of the one clip they always hand out

    text: str | None = None  # message: the reply's or transcript's words; by default they are made from the request
    # message: how well an object that was asked for by a JSON Schema is made
    answer: Literal["fits", "misfits", "malformed"] = "fits"
    stop_reason: str = "end_turn"
    cut_stream: bool = False  # message with stream: the connection ends before its end mark
    stream_error: bool = False  # message with stream: an `error` event after some text
    stream_pause: Span = 0.0  # message with stream: before each event
    events: int | None = None  # message with stream: so many of them before it is cut; by default four


class When(Strict):
    route: Route | Literal["any"] = "any"
    nth: list[int] | None = None
    every: int | None = Field(default=None, ge=1)
    probability: float = Field(default=1.0, ge=0, le=1)
    contains: str | None = None


class Rule(Strict):
    when: When = When()
    do: Actions = Actions()
    name: str | None = None


class Script(Strict):
    seed: int = 0
    defaults: Actions = Actions()
    rules: list[Rule] = []


class Director:
    """Reads a script: `cue` names the actions for one request. Counts which rules fired."""

    def __init__(self, script: Script) -> None:
        self._random = random.Random(script.seed)
        self._defaults = script.defaults
        self._rules = [
            (rule.when, rule.name or f"rule {number}", _overlay(script.defaults, rule.do))
            for number, rule in enumerate(script.rules)
        ]
        self._reached = [0] * len(self._rules)
        self.fired: Counter[str] = Counter()

    def cue(self, route: Route, text: str = "") -> Actions:
        """The actions for a request at `route` whose input, as JSON, is `text`."""
        for number, (when, name, actions) in enumerate(self._rules):
            if when.route not in (route, "any") or (when.contains is not None and when.contains not in text):
                continue
            self._reached[number] += 1
            if self._holds(when, self._reached[number]):
                self.fired[name] += 1
                return actions
        return self._defaults

    def seconds(self, span: Span) -> float:
        """One draw from a span, in seconds."""
        return span if isinstance(span, float | int) else self._random.uniform(*span)

    def _holds(self, when: When, count: int) -> bool:
        if when.nth is not None and count not in when.nth:
            return False
        if when.every is not None and count % when.every:
            return False
        return when.probability >= 1 or self._random.random() < when.probability


def _overlay(defaults: Actions, actions: Actions) -> Actions:
    return defaults.model_copy(update={name: getattr(actions, name) for name in actions.model_fields_set})
