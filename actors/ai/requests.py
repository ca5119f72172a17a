"""What an app asks of a model: one of four tasks, each with its own limits. Sizes are in characters."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

MOST_TEXT = 20_000
MOST_FIELDS = 40
_MOST_CHOICES = 50
_CLASSIFY_TOKENS, _CLASSIFY_MANY_TOKENS, _EXTRACT_TOKENS = 200, 500, 4096
_FEWEST_TEXT_TOKENS, _MOST_TEXT_TOKENS = 64, 8192

Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
Words = Annotated[str, Field(min_length=1, max_length=200)]
Profile = Annotated[str | None, Field(default=None, max_length=64)]


class _Task(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Profile = None


def _distinct(field: str, values: Sequence[str]) -> None:
    """Raises ValueError naming the first that comes twice."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{field} has {value[:80]!r} twice: each has to be there once")
        seen.add(value)


class GenerateText(_Task):
    """Write a text of at most `max_characters`. `{"text": …}`"""

    task: Literal["generate_text"]
    prompt: Text
    max_characters: int = Field(default=4_000, ge=1, le=MOST_TEXT)

    @property
    def most_tokens(self) -> int:
        return min(_MOST_TEXT_TOKENS, max(_FEWEST_TEXT_TOKENS, self.max_characters // 2))


class Classify(_Task):
    """Choose one of `choices` for `text`. `{"choice": …}`"""

    task: Literal["classify"]
    text: Text
    choices: list[Words] = Field(min_length=2, max_length=_MOST_CHOICES)
    instructions: str | None = Field(default=None, max_length=2_000)

    @property
    def most_tokens(self) -> int:
        return _CLASSIFY_TOKENS

    @model_validator(mode="after")
    def _chooses(self) -> Self:
        _distinct("choices", self.choices)
        return self


class ClassifyMany(_Task):
    """Choose all of `choices` that hold for `text`, perhaps none. `{"choices": […]}`, each once, in their own order."""

    task: Literal["classify_many"]
    text: Text
    choices: list[Words] = Field(min_length=2, max_length=_MOST_CHOICES)
    instructions: str | None = Field(default=None, max_length=2_000)

    @property
    def most_tokens(self) -> int:
        return _CLASSIFY_MANY_TOKENS

    @model_validator(mode="after")
    def _chooses(self) -> Self:
        _distinct("choices", self.choices)
        return self


class ExtractedField(BaseModel):
    """One value to find. `values` are those of an enum; `nullable`: null where the text does not say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
    type: Literal["text", "number", "boolean", "enum"]
    description: str | None = Field(default=None, max_length=500)
    values: list[Words] | None = Field(default=None, min_length=1, max_length=_MOST_CHOICES)
    nullable: bool = False

    @model_validator(mode="after")
    def _has_its_values(self) -> Self:
        if (self.type == "enum") is not (self.values is not None):
            raise ValueError(f"field {self.name!r}: values are for an enum, which has 1 to {_MOST_CHOICES} of them")
        _distinct(f"values of field {self.name!r}", self.values or ())
        return self


class ExtractData(_Task):
    """Find each of `fields` in `text`. One value a field, under its name."""

    task: Literal["extract_data"]
    text: Text
    fields: list[ExtractedField] = Field(min_length=1, max_length=MOST_FIELDS)
    instructions: str | None = Field(default=None, max_length=2_000)

    @property
    def most_tokens(self) -> int:
        return _EXTRACT_TOKENS

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        _distinct("fields", [field.name for field in self.fields])
        return self


Task = GenerateText | Classify | ClassifyMany | ExtractData


class AiTask(RootModel[Annotated[Task, Field(discriminator="task")]]):
    """A request of job type `ai-task`: `task` says which. `model` names a profile, by default the deployment's."""

    model_config = ConfigDict(frozen=True)
