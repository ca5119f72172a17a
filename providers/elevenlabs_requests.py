"""What an app submits to the ElevenLabs kinds: one model an operation, told apart by the field `operation`.

Fields are the API's own, as its Python client names them; an operation's docstring says which request it makes.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from providers.elevenlabs_files import INLINE, Inline

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
Model = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")]
Address = Annotated[str, Field(pattern=r"^https://[^\s]+$", max_length=8192)]
Language = Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(?:-[A-Za-z0-9]{2,8}){0,2}$")]
Labels = dict[Annotated[str, Field(min_length=1, max_length=100)], Annotated[str, Field(max_length=500)]]
# Only formats whose bytes say what they are: raw PCM, A-law and u-law could not be told from a broken answer.
Format = Annotated[str, Field(pattern=r"^(?:mp3|opus|wav)_\d{4,6}(?:_\d{2,3})?$")]


class Operation(BaseModel):
    """Common to all: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Sourced(Operation):
    source_url: Address | None = None
    file: Inline | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.source_url is None) == (self.file is None):
            raise ValueError(f"name exactly one of source_url (https, fetched by ElevenLabs) and file: {INLINE}")
        return self


class Dubbing(_Sourced):
    """`POST /v1/dubbing`, automatic mode. Times are in whole seconds; `num_speakers` 0 lets the API detect them."""

    operation: Literal["dubbing"]
    target_lang: Language
    source_lang: Language = "auto"
    num_speakers: int = Field(default=0, ge=0)
    watermark: bool | None = None
    start_time: int | None = Field(default=None, ge=0)
    end_time: int | None = Field(default=None, ge=0)
    highest_resolution: bool | None = None
    drop_background_audio: bool | None = None
    use_profanity_filter: bool | None = None
    disable_voice_cloning: bool | None = None


class VoiceClone(Operation):
    """`POST /v1/voices/add`: an instant clone from samples. It takes one of the account's voice slots."""

    operation: Literal["voice_clone"]
    name: str = Field(min_length=1, max_length=100)
    files: list[Inline] = Field(min_length=1, max_length=25)
    remove_background_noise: bool = False
    description: str = Field(default="", max_length=400)
    labels: Labels = {}


class VoiceDesign(Operation):
    """`POST /v1/text-to-voice/design`: previews to choose from. `text` has 100 to 1000 characters."""

    operation: Literal["voice_design"]
    voice_description: str = Field(min_length=1, max_length=1000)
    text: str | None = Field(default=None, min_length=100, max_length=1000)
    auto_generate_text: bool = False
    model_id: Literal["eleven_multilingual_ttv_v2", "eleven_ttv_v3"] | None = None
    seed: int | None = Field(default=None, ge=0)
    guidance_scale: float | None = Field(default=None, ge=0)
    loudness: float | None = Field(default=None, ge=-1, le=1)
    output_format: Format = "mp3_44100_128"

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if (self.text is None) != self.auto_generate_text:
            raise ValueError("give either text or auto_generate_text: true")
        return self


class VoiceSave(Operation):
    """`POST /v1/text-to-voice`: keeps one preview of a design as a voice. It takes one of the account's slots."""

    operation: Literal["voice_save"]
    voice_name: str = Field(min_length=1, max_length=100)
    voice_description: str = Field(min_length=1, max_length=900)
    generated_voice_id: Id
    labels: Labels = {}


class ForcedAlignment(Operation):
    """`POST /v1/forced-alignment`: when each character and word of `text` is said in the file."""

    operation: Literal["forced_alignment"]
    file: Inline
    text: str = Field(min_length=1, max_length=100_000)


class VoiceSettings(Operation):
    """How a voice speaks; 0 to 1, `speed` around 1."""

    stability: float | None = Field(default=None, ge=0, le=1)
    similarity_boost: float | None = Field(default=None, ge=0, le=1)
    style: float | None = Field(default=None, ge=0, le=1)
    use_speaker_boost: bool | None = None
    speed: float | None = Field(default=None, gt=0, le=4)


class Speech(Operation):
    """`POST /v1/text-to-speech/{voice_id}`. `text` is what is spoken and paid for, by the character."""

    operation: Literal["speech"]
    voice_id: Id
    text: str = Field(min_length=1, max_length=40_000)
    model_id: Model | None = None
    language_code: Language | None = None
    voice_settings: VoiceSettings | None = None
    seed: int | None = Field(default=None, ge=0)
    previous_text: str | None = Field(default=None, max_length=40_000)
    next_text: str | None = Field(default=None, max_length=40_000)
    output_format: Format = "mp3_44100_128"


class SoundEffects(Operation):
    """`POST /v1/sound-generation`. `duration_seconds` is 0.5 to 30, or chosen by the model."""

    operation: Literal["sound_effects"]
    text: str = Field(min_length=1, max_length=10_000)
    duration_seconds: float | None = Field(default=None, ge=0.5, le=30)
    prompt_influence: float | None = Field(default=None, ge=0, le=1)
    loop: bool | None = None
    model_id: Model | None = None
    output_format: Format = "mp3_44100_128"


class Transcription(_Sourced):
    """`POST /v1/speech-to-text`, answered in one piece."""

    operation: Literal["transcription"]
    model_id: Model
    language_code: Language | None = None
    diarize: bool | None = None
    num_speakers: int | None = Field(default=None, ge=1, le=32)
    timestamps_granularity: Literal["none", "word", "character"] | None = None
    tag_audio_events: bool | None = None


AsyncOperation = Dubbing | VoiceClone | VoiceDesign | VoiceSave | ForcedAlignment
SyncOperation = Speech | SoundEffects | Transcription


class ElevenLabsAsyncRequest(RootModel[Annotated[AsyncOperation, Field(discriminator="operation")]]):
    """One operation of kind `elevenlabs-async`."""

    model_config = ConfigDict(frozen=True)


class ElevenLabsSyncRequest(RootModel[Annotated[SyncOperation, Field(discriminator="operation")]]):
    """One operation of kind `elevenlabs-sync`."""

    model_config = ConfigDict(frozen=True)
