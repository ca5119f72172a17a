"""A listing tour as its planner wrote it: scenes, an avatar, a voice. Shapes only; `check` says what can be made."""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
Language = Annotated[str, Field(pattern=r"^[a-z]{2}(?:-[A-Z]{2})?$")]
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
Photo = Annotated[str, Field(pattern=r"^https://[^\s]+$", max_length=2048)]

Corner = Literal["top-left", "top-right", "bottom-left", "bottom-right"]


class Part(BaseModel):
    """Common to all: unknown fields are refused, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Scene(Part):
    """One shot. `seconds` is how long it is to be seen; `photo` names one of the listing's; `camera` is a move."""

    id: Name
    prompt: str = Field(min_length=1, max_length=2000)
    camera: str = Field(default="static", min_length=1, max_length=60)
    seconds: int = Field(ge=1, le=120)
    photo: Name | None = None
    optional: bool = False


class Avatar(Part):
    """A person who greets, in a corner of the picture, before the voice-over begins."""

    avatar_id: Id
    voice_id: Id
    script: str = Field(min_length=1, max_length=5000)
    corner: Corner = "bottom-right"
    optional: bool = True


class Voice(Part):
    """The voice-over: always needed, since a tour without a word is none."""

    voice_id: Id
    script: str = Field(min_length=1, max_length=20_000)
    model_id: str = Field(default="eleven_multilingual_v2", pattern=r"^[A-Za-z0-9_.-]{1,100}$")


class Plan(Part):
    """What a planner may write, and a repair may rewrite."""

    title: str = Field(min_length=1, max_length=120)
    language: Language
    scenes: list[Scene] = Field(min_length=1, max_length=40)
    voice: Voice
    avatar: Avatar | None = None


class Frame(Part):
    """The picture of the whole tour. Sides in pixels, `rate` in pictures a second."""

    width: int = Field(default=1280, ge=64, le=3840, multiple_of=2)
    height: int = Field(default=720, ge=64, le=2160, multiple_of=2)
    rate: int = Field(default=24, ge=10, le=60)

    @property
    def aspect(self) -> str:
        return "16:9" if self.width >= self.height else "9:16"


class Tour(Part):
    """What an app asks for: the plan, the listing's photos by name, and what it may cost in time.

    `longest` bounds the whole tour, in seconds.
    """

    plan: Plan
    photos: dict[Name, Photo] = Field(default={}, max_length=200)
    frame: Frame = Frame()
    video_model: str = Field(default="google/veo-3.1", min_length=1, max_length=256)
    longest: int = Field(default=300, ge=1, le=3600)


_WORD = re.compile(r"\w+(?:['\u2019\-]\w+)*")
# Words a second of an unhurried voice, by language. Where words are not set apart, characters a second.
_PACE = {"en": 2.6, "de": 2.2, "fr": 2.7, "es": 2.8, "it": 2.6, "pt": 2.6, "nl": 2.4, "pl": 2.1}
_CHARACTERS = {"ja": 7.0, "zh": 4.5, "ko": 6.0}
LANGUAGES = frozenset({*_PACE, *_CHARACTERS})


def spoken_seconds(script: str, language: str) -> float:
    """About how long it takes to say. KeyError for a language that no voice here speaks."""
    tongue = language[:2]
    if tongue in _CHARACTERS:
        return sum(not one.isspace() for one in script) / _CHARACTERS[tongue]
    return len(_WORD.findall(script)) / _PACE[tongue]
