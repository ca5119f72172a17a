"""The one reader of the environment: validated once, with errors that name the variable."""

import os
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pydantic_settings import SettingsError as SettingsSourceError

from store.hygiene import withhold

_SECRET_PREFIX = "CALLKEEPER_SECRET_"  # noqa: S105  # the name of a variable

PROFILE_ID = r"^[a-z0-9][a-z0-9._-]{0,63}$"

# By the first word of a kind's name; one vendor's key is never sent to another.
VENDOR_KEYS = {
    "replicate": "REPLICATE_API_TOKEN",
    "anthropic": "ANTHROPIC_API_KEY",
    "kie": "KIE_API_KEY",
    "elevenlabs": "ELEVENLABS_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "heygen": "HEYGEN_API_KEY",
}


class SettingsError(Exception):
    """The environment cannot be used; the message names each variable and what it should be."""


def _is_web_address(text: str) -> bool:
    try:
        HttpUrl(text)
    except ValidationError:
        return False
    return True


def _is_mail_server(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port_is_right = parts.port != 0
    except ValueError:
        return False
    whole = bool(parts.hostname) and parts.path in ("", "/") and not parts.fragment
    return (
        parts.scheme in ("smtp", "smtps")
        and whole
        and port_is_right
        and parts.query in ("", "tls=always", "tls=never", "tls=offered")
    )


class KindSettings(BaseModel):
    """Overrides of one provider kind, in seconds where they are times (`CALLKEEPER_KINDS`)."""

    model_config = ConfigDict(extra="forbid")

    base_url: str | None = None
    api_key: SecretStr | None = None
    account: str = "default"
    send_deadline: float | None = Field(default=None, gt=0)
    poll_deadline: float | None = Field(default=None, gt=0)
    first_poll: float | None = Field(default=None, ge=0)
    poll_every: float | None = Field(default=None, gt=0)
    visibility_lag: float | None = Field(default=None, ge=0)
    finds_lost: bool | None = None
    callback_secrets: list[SecretStr] = []
    media_hosts: list[str] | None = None


class AiProfile(BaseModel):
    """One model for AI tasks (`CALLKEEPER_AI_PROFILES`). `max_output` in tokens, prices in micro-USD a million tokens.

    `temperature` (0 to 1; of `kie-llm`, no model takes one) and `reasoning` (on or off) are sent only if they are set.
    `strict`: the provider is asked to hold the model to the schema where it can (`anthropic-sync`). `label`: for people
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["anthropic-sync", "kie-llm"]
    model: str = Field(min_length=1, max_length=128)
    price_in: int = Field(ge=0, le=10**12)
    price_out: int = Field(ge=0, le=10**12)
    max_output: int = Field(default=8192, ge=1, le=128_000)
    temperature: float | None = Field(default=None, ge=0, le=1)
    reasoning: bool | None = None
    strict: bool = True
    label: str = Field(default="", max_length=200)


class Settings(BaseSettings):
    """Every variable Callkeeper reads. Times are seconds."""

    model_config = SettingsConfigDict(
        env_prefix="CALLKEEPER_", env_ignore_empty=True, extra="ignore", populate_by_name=True
    )

    database_url: str | None = Field(default=None, alias="DATABASE_URL")
    replicate_api_token: SecretStr | None = Field(default=None, alias="REPLICATE_API_TOKEN")
    elevenlabs_api_key: SecretStr | None = Field(default=None, alias="ELEVENLABS_API_KEY")
    anthropic_api_key: SecretStr | None = Field(default=None, alias="ANTHROPIC_API_KEY")
    kie_api_key: SecretStr | None = Field(default=None, alias="KIE_API_KEY")
    openrouter_api_key: SecretStr | None = Field(default=None, alias="OPENROUTER_API_KEY")
    heygen_api_key: SecretStr | None = Field(default=None, alias="HEYGEN_API_KEY")

    kinds: dict[str, KindSettings] = {}
    modules: Annotated[list[str], NoDecode] = []
    media_url: str = ".callkeeper/media"
    insecure_media_hosts: Annotated[list[str], NoDecode] = []
    notice_url: HttpUrl | None = None
    notice_secret: SecretStr | None = None

    lease: float = Field(default=30, gt=0)
    beat: float = Field(default=10, gt=0)
    lease_margin: float = Field(default=2, ge=0)
    grace: float = Field(default=25, gt=0)
    threads: int = Field(default=8, ge=1, le=256)
    polls_at_once: int = Field(default=200, ge=1, le=5000)
    imports_at_once: int = Field(default=32, ge=1, le=256)
    poll_lease: float = Field(default=45, gt=0)
    import_again: float = Field(default=60, gt=0)
    import_attempts: int = Field(default=12, ge=1, le=1000)
    verify_media: bool = True
    tour_memory: int = Field(default=3072, ge=64)
    retry_base: float = Field(default=2, gt=0)
    retry_cap: float = Field(default=300, gt=0)
    throttle_wait: float = Field(default=15, gt=0)
    breaker_failures: int = Field(default=5, ge=1)
    breaker_wait: float = Field(default=30, gt=0)
    alert_url: SecretStr | None = None
    alert_secret: SecretStr | None = None
    alert_email: str | None = None
    callback_url: HttpUrl | None = None
    callback_secret: SecretStr | None = None
    operator_wait: float = Field(default=60, gt=0)
    stage_thresholds: dict[str, Annotated[float, Field(gt=0)]] = {}
    smtp_url: SecretStr | None = None
    mail_from: str = "Callkeeper <callkeeper@localhost>"
    ai_profiles: dict[Annotated[str, Field(pattern=PROFILE_ID)], AiProfile] = {}
    ai_profile: str | None = None
    reconcile_attempts: int = Field(default=18, ge=1, le=1000)
    web_job_types: Annotated[list[str], NoDecode] = []
    web_threads: int = Field(default=8, ge=1, le=128)
    web_streams: int = Field(default=2000, ge=1)
    web_streams_per_user: int = Field(default=100, ge=1)
    web_heartbeat: float = Field(default=15, gt=0)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    secrets: dict[str, SecretStr] = Field(default={}, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _split_lists(cls, values: Any) -> Any:
        for name in ("modules", "insecure_media_hosts", "web_job_types"):
            if isinstance(values, dict) and isinstance(values.get(name), str):
                values[name] = [part.strip() for part in values[name].split(",") if part.strip()]
        return values

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.beat * 2 + self.lease_margin > self.lease:
            raise ValueError(
                f"CALLKEEPER_LEASE={self.lease:g} must be at least twice CALLKEEPER_BEAT={self.beat:g}"
                f" plus CALLKEEPER_LEASE_MARGIN={self.lease_margin:g}, or one lost beat loses every lease"
            )
        if self.notice_url is not None and self.notice_secret is None:
            raise ValueError("CALLKEEPER_NOTICE_URL needs CALLKEEPER_NOTICE_SECRET, which signs what is sent there")
        if self.smtp_url is not None and not _is_mail_server(self.smtp_url.get_secret_value()):
            raise ValueError(
                "CALLKEEPER_SMTP_URL must be like smtp://user:password@mail.example.com:587, or smtps://…; in its"
                " password / is %2F, : is %3A, # is %23 and ? is %3F; only ?tls=always or ?tls=never may follow"
            )
        if self.alert_url is not None and not _is_web_address(self.alert_url.get_secret_value()):
            raise ValueError("CALLKEEPER_ALERT_URL must be like https://chat.example.com/hooks/…, http or https")
        if self.alert_secret is not None and self.alert_url is None:
            raise ValueError("CALLKEEPER_ALERT_SECRET signs what is sent to CALLKEEPER_ALERT_URL, which is not set")
        if self.alert_email is not None:
            self._check_alert_email(self.alert_email)
        if self.callback_url is not None and self.callback_secret is None:
            raise ValueError("CALLKEEPER_CALLBACK_URL needs CALLKEEPER_CALLBACK_SECRET, which signs the ids in it")
        return self

    def _check_alert_email(self, addresses: str) -> None:
        if self.smtp_url is None:
            raise ValueError("CALLKEEPER_ALERT_EMAIL needs CALLKEEPER_SMTP_URL, the mail server that takes the letters")
        for address in addresses.split(","):
            name, at, domain = address.strip().partition("@")
            if not (name and at and domain) or any(letter.isspace() for letter in address.strip()):
                raise ValueError(
                    f"CALLKEEPER_ALERT_EMAIL={addresses!r} must be an address like ops@example.com,"
                    " or several with commas between"
                )

    @property
    def lease_term(self) -> timedelta:
        return timedelta(seconds=self.lease)

    @property
    def poll_lease_term(self) -> timedelta:
        return timedelta(seconds=self.poll_lease)

    @property
    def accounts(self) -> dict[str, str]:
        """Account names by kind, where another than `default` is called."""
        return {name: kind.account for name, kind in self.kinds.items() if kind.account != "default"}

    @property
    def confidential(self) -> list[str]:
        """All that this process was given to keep to itself."""
        fields = [getattr(self, name) for name in type(self).model_fields if name != "secrets"]
        kinds = [secret for kind in self.kinds.values() for secret in (kind.api_key, *kind.callback_secrets)]
        given = [*fields, *kinds, *self.secrets.values()]
        return [one.get_secret_value() for one in given if isinstance(one, SecretStr)]

    def require_database_url(self) -> str:
        if not self.database_url:
            raise SettingsError(
                "DATABASE_URL is not set: point it at your Postgres (15 to 18),"
                " for example postgresql://user:password@localhost/app; `callkeeper demo` brings its own"
            )
        return self.database_url


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read and validate the environment. Raises SettingsError."""
    environment = os.environ if environment is None else environment
    secrets = {
        name.removeprefix(_SECRET_PREFIX).lower(): SecretStr(value)
        for name, value in environment.items()
        if name.startswith(_SECRET_PREFIX)
    }
    try:
        return Settings(secrets=secrets)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None
    except SettingsSourceError as error:
        raise SettingsError(f"the environment cannot be read: {error}") from None


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        where = [str(part) for part in problem["loc"]]
        name = where[0] if where and where[0].isupper() else "CALLKEEPER_" + where[0].upper() if where else ""
        path = ".".join([name, *where[1:]]).strip(".")
        text = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{path}: {text}" if path else text)
    return "settings refused: " + "; ".join(lines)


@cache
def settings() -> Settings:
    """This process's settings, read at first use. What is confidential in them is stored nowhere from then on."""
    found = load()
    withhold(found.confidential)
    return found
