"""The tour that the demo renders, with a camera move that nobody can make, and a provider that makes a scene short."""

import json
from typing import Any

from actors.tour.plan import Tour

ACCOUNT = "agency"
GRANTED = 500

KINDS: dict[str, dict[str, Any]] = {
    "openrouter-video": {"first_poll": 0.5, "poll_every": 1.0, "send_deadline": 4.0, "visibility_lag": 1.0},
    "heygen-video": {"first_poll": 0.5, "poll_every": 1.0, "send_deadline": 4.0, "visibility_lag": 1.0},
    "elevenlabs-sync": {"send_deadline": 8.0},
    "anthropic-sync": {"send_deadline": 8.0},
}
_SCENES = (
    ("front", "The house from the street in the morning, an old maple in front of it.", "push_in", 4),
    ("kitchen", "A kitchen of oak and white stone, the garden behind its window.", "slide_left", 6),
    ("living-room", "A living room with an open fireplace and a wall of books.", "pan_right", 6),
    ("garden", "A long garden with a table under a walnut tree at dusk.", "pull_out", 4),
)
_GREETING = "Welcome to Lake Road seven. Let me show you around."
_NARRATION = (
    "It stands at the end of a quiet street, ten minutes from the lake. The kitchen was made new last year. Evenings"
    " belong to the fireplace, and summers to the garden behind the house, under a tree as old as the street."
)
_FILM = {"width": 640, "height": 360, "rate": 24}


def tour() -> Tour:
    """As its planner wrote it: no video model makes the move that its second scene asks for."""
    return Tour.model_validate(_order("crane_through_window"))


def script(seed: int) -> dict[str, Any]:
    """The sandbox's script; see providers/sandbox/script.py for its words."""
    mended = json.dumps(_order("slide_left")["plan"])
    return {
        "seed": seed,
        "defaults": {"reply_delay": [0.1, 0.3], "run_seconds": [3.0, 7.0], "film": _FILM, "text": mended},
        "rules": [
            {
                "name": "a scene that is too short",
                "when": {"route": "create", "contains": "fireplace and a wall"},
                "do": {"film": {**_FILM, "stretch": 0.93}},
            },
        ],
    }


def _order(move: str) -> dict[str, Any]:
    scenes = [
        {
            "id": name,
            "prompt": prompt,
            "camera": move if name == "kitchen" else camera,
            "seconds": seconds,
            "photo": name,
        }
        for name, prompt, camera, seconds in _SCENES
    ]
    plan = {
        "title": "Lake Road 7",
        "language": "en",
        "scenes": scenes,
        "avatar": {"avatar_id": "sandbox-presenter", "voice_id": "sandbox-voice", "script": _GREETING},
        "voice": {"voice_id": "sandbox-voice", "script": _NARRATION},
    }
    return {
        "plan": plan,
        "photos": {name: f"https://photos.example/{name}.jpg" for name, *_ in _SCENES},
        "frame": {"width": 640, "height": 360, "rate": 24},
    }
