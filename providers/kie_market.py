"""What an app submits for the models of KIE's common endpoint whose input is known: Kling 3 and lip-sync.

Source: KIE's documentation of these models; the rules between Kling's fields are from public client code.
"""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from providers.contract import JSON
from providers.kie_requests import KieRequest, ModelName, Prompt, Url

KLING_MODEL = "kling-3.0/video"

Seconds: TypeAlias = Annotated[str, StringConstraints(pattern=r"^(?:[3-9]|1[0-5])$")]
_Shot: TypeAlias = Annotated[int, Field(ge=1, le=15)]


class KlingShot(BaseModel):
    """One of several shots. `duration` is in whole seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: Prompt
    duration: _Shot | Annotated[str, StringConstraints(pattern=r"^(?:[1-9]|1[0-5])$")]


class KlingElement(BaseModel):
    """Somebody or something that the prompt names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^element_.{1,100}$")
    description: str = Field(max_length=100)
    element_input_urls: list[Url] | None = None
    element_input_video_urls: list[Url] | None = None


class KieKlingRequest(KieRequest):
    """Kling 3.0: the model's own input fields, which are in snake_case there. `duration` is text: 3 to 15 seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=None)

    media = "video"

    prompt: Prompt | None = None
    image_urls: list[Url] | None = Field(default=None, min_length=1, max_length=16)
    sound: bool | None = None
    duration: Seconds | None = None
    aspect_ratio: str | None = Field(default=None, pattern=r"^(?:\d{1,2}:\d{1,2}|auto)$")
    mode: Literal["std", "pro", "4K"] | None = None
    multi_shots: bool | None = None
    multi_prompt: list[KlingShot] | None = Field(default=None, min_length=1, max_length=15)
    kling_elements: list[KlingElement] | None = Field(default=None, min_length=1, max_length=16)

    @model_validator(mode="after")
    def _shots_fit(self) -> Self:
        if not self.multi_shots:
            if self.multi_prompt or self.prompt is None:
                raise ValueError("prompt is needed, or multi_shots with multi_prompt")
            return self
        if not self.sound or not self.multi_prompt:
            raise ValueError("multi_shots needs sound and multi_prompt")
        whole = sum(int(shot.duration) for shot in self.multi_prompt)
        if self.duration is not None and int(self.duration) != whole:
            raise ValueError(f"the shots last {whole} seconds together, and duration says {self.duration}")
        return self

    def wire(self) -> dict[str, JSON]:
        return {"model": KLING_MODEL, "input": self.model_dump(mode="json", exclude_none=True)}

    def frozen(self) -> dict[str, JSON]:
        return {**super().frozen(), "model": KLING_MODEL}


# Of the models whose input is documented: what each cannot do without.
_NEEDS: dict[str, tuple[str, ...]] = {
    "volcengine/video-to-video-lip-sync": ("video_url", "audio_url"),
    "infinitalk/from-audio": ("image_url", "audio_url"),
    "kling/ai-avatar-pro": ("image_url", "audio_url"),
    "kling/ai-avatar-standard": ("image_url", "audio_url"),
    "omnihuman-1-5": ("image_url", "audio_url"),
}


class KieLipSyncRequest(KieRequest):
    """A face made to speak. Models not known here are passed on as they are."""

    media = "video"

    model: ModelName
    input: dict[str, JSON] = Field(min_length=1)

    @model_validator(mode="after")
    def _face_and_voice(self) -> Self:
        for name in _NEEDS.get(self.model, ()):
            value = self.input.get(name)
            if not (isinstance(value, str) and value.startswith(("https://", "http://"))):
                raise ValueError(f"{self.model} needs the address {name} in input")
        return self

    def wire(self) -> dict[str, JSON]:
        return {"model": self.model, "input": dict(self.input)}
