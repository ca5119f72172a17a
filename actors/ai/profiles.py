"""The models that tasks may name: registered profiles, and what of one is pinned when a task is submitted.

An operator's profile (`CALLKEEPER_AI_PROFILES`) goes before an app's of the same name.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from actors.settings import PROFILE_ID, AiProfile, settings
from store.errors import InvalidRequest

_REGISTERED: dict[str, AiProfile] = {}
# What can make the same question get another answer. A label or a price cannot.
_MATTERS = frozenset({"kind", "model", "temperature", "reasoning", "strict", "max_output"})


class Pinned(BaseModel):
    """Which model a task goes to, as decided at submit. `config` is the hash of what matters in its profile."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profile: str
    kind: str
    model: str
    config: str


class ModelChanged(Exception):
    """A task's profile is gone, or another model by now; the message says which."""


def register_profile(name: str, **about: Any) -> AiProfile:
    """Make a model known under `name`; import the module in the app and in the workers (CALLKEEPER_MODULES).

    `about`: kind, model, price_in, price_out and the rest of `actors.settings.AiProfile`. Raises ValueError for what
    cannot be right, or for a name that another profile has.
    """
    if not re.fullmatch(PROFILE_ID, name):
        raise ValueError(
            f"profile {name!r}: use 1 to 64 of a-z, 0-9, dot, dash and underscore, a letter or digit first"
        )
    try:
        profile = AiProfile.model_validate(about)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ValueError(f"profile {name!r}: {problems}") from None
    if _REGISTERED.setdefault(name, profile) != profile:
        raise ValueError(f"profile {name!r} is already registered, and not the same: choose another name")
    return profile


def profiles() -> Mapping[str, AiProfile]:
    """All there are, by name."""
    return {**_REGISTERED, **settings().ai_profiles}


def config_hash(profile: AiProfile) -> str:
    """Sixty-four hex digits over what matters, whatever the order it was written in."""
    matters = profile.model_dump(mode="json", include=set(_MATTERS))
    return hashlib.sha256(json.dumps(matters, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def pin(name: str | None) -> Pinned:
    """Decide which model a task goes to. Raises InvalidRequest when it names none that is known."""
    wanted = name or settings().ai_profile
    known = profiles()
    if wanted is None:
        raise InvalidRequest("model", f"is missing, and CALLKEEPER_AI_PROFILE names no default: {_choose(known)}")
    profile = known.get(wanted)
    if profile is None:
        by = "" if name else " (by CALLKEEPER_AI_PROFILE)"
        raise InvalidRequest("model", f"is {wanted!r}{by}, which is no profile: {_choose(known)}")
    return Pinned(profile=wanted, kind=profile.kind, model=profile.model, config=config_hash(profile))


def _choose(known: Mapping[str, AiProfile]) -> str:
    if not known:
        return "none is registered; see CALLKEEPER_AI_PROFILES, or register_profile in a module of CALLKEEPER_MODULES"
    return f"send one of {', '.join(sorted(known))}"


def unchanged(pinned: Pinned) -> AiProfile:
    """The profile, if it is what it was when the task was submitted. Raises ModelChanged."""
    profile = profiles().get(pinned.profile)
    if profile is None:
        raise ModelChanged(f"profile {pinned.profile!r} is gone: submit the task again, with another")
    if config_hash(profile) != pinned.config:
        raise ModelChanged(
            f"profile {pinned.profile!r} was {pinned.model} by {pinned.kind} when the task was submitted, and is"
            f" {profile.model} by {profile.kind}, or set up otherwise, now: submit the task again"
        )
    return profile
