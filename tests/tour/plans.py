"""Plans of tours, good and otherwise."""

from typing import Any

from actors.tour.plan import Tour

PHOTOS = {name: f"https://example.com/{name}.jpg" for name in ("front", "kitchen", "living", "garden")}
GREETING = "Welcome, I am glad that you are here today."
NARRATION = (
    "This house stands at the end of a quiet street, close to the lake and the school. The kitchen was made new last"
    " year, with a large window to the garden. The living room has an open fireplace and room for all of your friends"
    " and their stories."
)


def scene(number: int, **changes: Any) -> dict[str, Any]:
    names = list(PHOTOS)
    return {
        "id": f"scene-{number}",
        "prompt": f"A bright room, number {number}.",
        "camera": ("push_in", "pan_left", "pan_right", "slide_left")[number % 4],
        "seconds": 6,
        "photo": names[number % 4],
        **changes,
    }


def plan(**changes: Any) -> dict[str, Any]:
    return {
        "title": "Lake Road 7",
        "language": "en",
        "scenes": [scene(number) for number in range(4)],
        "voice": {"voice_id": "voice1", "script": NARRATION},
        "avatar": {"avatar_id": "ann", "voice_id": "voice2", "script": GREETING},
        **changes,
    }


def tour(*, frame: dict[str, int] | None = None, photos: dict[str, str] | None = None, **changes: Any) -> Tour:
    """A tour of four scenes of six seconds that can be made, with these parts of its plan changed."""
    return Tour.model_validate(
        {
            "plan": plan(**changes),
            "photos": PHOTOS if photos is None else photos,
            "frame": frame or {"width": 160, "height": 90, "rate": 24},
        }
    )
