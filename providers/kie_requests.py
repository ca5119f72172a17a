"""What an app submits for KIE's kinds, in KIE's own words; snake_case names are taken as well.

Source: KIE's documentation of each family's create page. Fields it does not list are refused here, where it
costs nothing, instead of there, where an unknown field may be ignored and the run be paid for.
"""

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from providers.contract import JSON

Url: TypeAlias = Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=8192)]
Prompt: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=20_000)]
ModelName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]


class KieRequest(BaseModel):
    """Common to all: how it is written on the wire, and what a poll must know of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    media: ClassVar[str | None] = None  # what the family makes; None where the URL tells

    def wire(self) -> dict[str, JSON]:
        """The body to post, without the callback's address."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def frozen(self) -> dict[str, JSON]:
        """`model`, `output` and `media_kind`, for the handle."""
        return {"model": getattr(self, "model", None), "output": "media", "media_kind": self.media}


class KieStandardRequest(KieRequest):
    """Any model of the common endpoint. `output` says what is expected: files, one text, or the result as it is."""

    model: ModelName
    input: dict[str, JSON]
    output: Literal["media", "text", "json"] = "media"
    media_kind: Literal["image", "video", "audio", "file"] | None = None

    def wire(self) -> dict[str, JSON]:
        return {"model": self.model, "input": dict(self.input)}

    def frozen(self) -> dict[str, JSON]:
        return {"model": self.model, "output": self.output, "media_kind": self.media_kind}


class KieVeoRequest(KieRequest):
    """Veo. `duration` is in seconds."""

    media = "video"

    prompt: Prompt
    model: str | None = Field(default=None, pattern=r"^veo[0-9][a-z0-9_.]{0,30}$")
    image_urls: list[Url] | None = Field(default=None, min_length=1, max_length=16)
    generation_type: (
        Literal["TEXT_2_VIDEO", "FIRST_AND_LAST_FRAMES_2_VIDEO", "REFERENCE_2_VIDEO", "IMAGE_2_VIDEO"] | None
    ) = None
    aspect_ratio: Literal["16:9", "9:16", "Auto"] | None = None
    resolution: Literal["720p", "1080p", "4k"] | None = None
    duration: Literal[4, 6, 8] | None = None
    seeds: int | None = None
    watermark: str | None = Field(default=None, max_length=200)
    enable_translation: bool | None = None

    @model_validator(mode="after")
    def _frames_are_given(self) -> Self:
        if self.generation_type not in (None, "TEXT_2_VIDEO") and not self.image_urls:
            raise ValueError(f"{self.generation_type} needs imageUrls")
        return self


class KieSunoRequest(KieRequest):
    """A song. In custom mode `style` and `title` are needed, and `prompt` holds the words to sing."""

    media = "audio"

    prompt: Prompt | None = None
    custom_mode: bool
    instrumental: bool
    model: str = Field(pattern=r"^V[0-9][A-Z0-9_.]{0,20}$")
    style: str | None = Field(default=None, min_length=1, max_length=5000)
    title: str | None = Field(default=None, min_length=1, max_length=500)
    negative_tags: str | None = Field(default=None, max_length=5000)
    vocal_gender: Literal["m", "f"] | None = None
    style_weight: float | None = Field(default=None, ge=0, le=1)
    weirdness_constraint: float | None = Field(default=None, ge=0, le=1)
    audio_weight: float | None = Field(default=None, ge=0, le=1)
    persona_id: str | None = Field(default=None, max_length=200)
    persona_model: str | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _told_enough(self) -> Self:
        if self.custom_mode and not (self.style and self.title):
            raise ValueError("custom mode needs style and title")
        if self.prompt is None and not (self.custom_mode and self.instrumental):
            raise ValueError("prompt is needed, but for an instrumental in custom mode")
        return self


class KieKontextRequest(KieRequest):
    """An image made, or `inputImage` edited."""

    media = "image"

    prompt: Prompt
    model: Literal["flux-kontext-pro", "flux-kontext-max"] | None = None
    input_image: Url | None = None
    aspect_ratio: str | None = Field(default=None, pattern=r"^\d{1,2}:\d{1,2}$")
    output_format: Literal["jpeg", "png"] | None = None
    prompt_upsampling: bool | None = None
    safety_tolerance: int | None = Field(default=None, ge=0, le=6)
    enable_translation: bool | None = None
    upload_cn: bool | None = None
    watermark: str | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _edits_are_stricter(self) -> Self:
        if self.input_image is not None and (self.safety_tolerance or 0) > 2:  # noqa: PLR2004
            raise ValueError("safetyTolerance is at most 2 when an image is edited")
        return self


class KieLumaRequest(KieRequest):
    """A video modified. `prompt` is in English."""

    media = "video"

    prompt: Prompt
    video_url: Url
    watermark: str | None = Field(default=None, max_length=200)


class KieRunwayRequest(KieRequest):
    """A video. `duration` is in seconds; ten of them are made at 720p only."""

    media = "video"

    prompt: str = Field(min_length=1, max_length=1800)
    duration: Literal[5, 10] | None = None
    quality: Literal["720p", "1080p"] | None = None
    aspect_ratio: str | None = Field(default=None, pattern=r"^\d{1,2}:\d{1,2}$")
    image_url: Url | None = None
    water_mark: str | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _long_is_small(self) -> Self:
        if self.duration == 10 and self.quality == "1080p":  # noqa: PLR2004
            raise ValueError("ten seconds are made at 720p only")
        return self
