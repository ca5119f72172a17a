"""What the makers of scenes can do: known before any money is spent, so that no plan is paid for to be refused."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of one video model. `seconds` are the only lengths it makes."""

    seconds: tuple[int, ...]
    aspects: tuple[str, ...]
    prompt: int  # characters


# Moves that a still photo of a room supports without inventing what is not in it.
MOVES = {
    "static": "The camera does not move.",
    "pan_left": "The camera pans slowly to the left.",
    "pan_right": "The camera pans slowly to the right.",
    "tilt_up": "The camera tilts slowly upwards.",
    "tilt_down": "The camera tilts slowly downwards.",
    "push_in": "The camera moves slowly forwards.",
    "pull_out": "The camera moves slowly backwards.",
    "slide_left": "The camera slides slowly to the left.",
    "slide_right": "The camera slides slowly to the right.",
}

MODELS = {
    "google/veo-3.1": Capabilities((4, 6, 8), ("16:9", "9:16"), 2000),
    "kwaivgi/kling-v2.5": Capabilities((5, 10), ("16:9", "9:16", "1:1"), 2000),
    "bytedance/seedance-1.5": Capabilities(tuple(range(2, 13)), ("16:9", "9:16", "1:1", "4:3"), 2000),
}

AVATAR_SCRIPT = 1500  # characters: longer greetings are speeches
SCENES = 24
MAX_SLACK = 1.10  # speech may be this much longer than the pictures planned for it: the most a voice is hurried
MIN_SPEECH = 0.6  # share of the pictures that is talked over, at least: the rest would be a film without a word
