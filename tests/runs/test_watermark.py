"""A mark that was asked for at submit is on what is kept, and on nothing else."""

import subprocess
from pathlib import Path
from typing import Any

import av
import imageio_ffmpeg
import pytest
from PIL import Image, ImageChops

from actors import public, watermark
from actors.runs import Step
from providers.errors import DownloadError
from store.media import MediaStore
from tests.chaos.harness import Fleet
from tests.runs.test_flow import submit, until_ended

FORMATS = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"}


def opened(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.copy()


def changed_corners(before: Image.Image, after: Image.Image) -> set[str]:
    """In which quarters of the picture anything is visibly different."""
    difference = ImageChops.difference(before.convert("RGB"), after.convert("RGB")).convert("L")
    width, height = difference.size
    corners = {
        "upper left": (0, 0, width // 2, height // 2),
        "lower left": (0, height // 2, width // 2, height),
        "upper right": (width // 2, 0, width, height // 2),
        "lower right": (width // 2, height // 2, width, height),
    }
    return {name for name, box in corners.items() if difference.crop(box).getextrema()[1] > 60}  # type: ignore[operator]


@pytest.mark.parametrize("extension", FORMATS)
@pytest.mark.parametrize("size", [(640, 360), (48, 64), (9, 9)])
def test_a_picture_is_marked_in_its_corner(tmp_path: Path, extension: str, size: tuple[int, int]) -> None:
    path = tmp_path / f"plain.{extension}"
    Image.new("RGB", size, (200, 60, 30)).save(path)
    before = opened(path).convert("RGB")
    marked = watermark.apply(path, "image", extension=extension, content_type=FORMATS[extension])
    after = opened(path)
    assert (after.size, marked.content_type, marked.size) == (size, FORMATS[extension], path.stat().st_size)
    if size[0] > 100:
        assert changed_corners(before, after) == {"lower right"}


def test_a_transparent_picture_stays_transparent(tmp_path: Path) -> None:
    path = tmp_path / "clear.png"
    Image.new("RGBA", (400, 300), (0, 0, 0, 0)).save(path)
    watermark.apply(path, "image", extension="png", content_type="image/png")
    after = opened(path)
    assert after.mode == "RGBA"
    assert after.getpixel((0, 0)) == (0, 0, 0, 0)


def film(path: Path, *more: str) -> None:
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-f", "lavfi", "-i", "color=c=red:s=320x180:d=1:r=25",
        "-f", "lavfi", "-i", "sine=d=1", *more, str(path),
    ]  # fmt: skip
    subprocess.run(command, check=True)


def test_a_video_is_marked_to_its_end_and_keeps_its_sound(tmp_path: Path) -> None:
    path = tmp_path / "plain.mp4"
    film(path, "-pix_fmt", "yuv420p")
    marked = watermark.apply(path, "video", extension="mp4", content_type="video/mp4")
    assert (marked.extension, marked.content_type) == ("mp4", "video/mp4")
    with av.open(str(path)) as container:
        frames = [frame.to_image() for frame in container.decode(video=0)]
        assert len(container.streams.audio) == 1
    plain = Image.new("RGB", (320, 180), frames[0].getpixel((5, 5)))  # type: ignore[arg-type]
    assert len(frames) == 25
    assert changed_corners(plain, frames[0]) == changed_corners(plain, frames[-1]) == {"lower right"}


def test_a_file_that_cannot_be_marked_is_refused_by_name(tmp_path: Path) -> None:
    for kind, extension in (("image", "png"), ("video", "mp4")):
        path = tmp_path / f"broken.{extension}"
        path.write_bytes(b"not a picture at all" * 100)
        with pytest.raises(DownloadError) as refused:
            watermark.apply(path, kind, extension=extension, content_type="x/y")
        assert refused.value.code == "watermark_failed"
        assert path.read_bytes() == b"not a picture at all" * 100


def test_what_is_kept_is_marked_as_frozen_at_submit(studio: Fleet) -> None:
    kept = []
    for wanted in (False, True):
        with studio.db.engine.begin() as connection:
            made = public.submit(
                connection,
                "film.scene",
                {"prompt": "lagoon"},
                user_id="ann",
                account_id=studio.account,
                watermark=wanted,
            )
        studio.until_status(made.job_id, "completed", within=40)
        kept.append(studio.one("select * from callkeeper.assets where job_id = :id", id=made.job_id))
    store = MediaStore(studio.env["CALLKEEPER_MEDIA_URL"])
    plain, marked = (store.get(one["object_key"]) for one in kept)
    assert kept[1]["size_bytes"] == len(marked)
    assert kept[1]["content_type"] == "video/mp4"
    assert plain != marked
    studio.check()


def test_only_a_runs_result_is_marked(studio: Fleet) -> None:
    steps: list[Any] = [
        Step("scene:1", "film.scene", {"prompt": "delta 1"}),
        Step("last", "film.scene", {"prompt": "delta 2"}),
    ]
    ended = until_ended(studio, submit(studio, steps, watermark=True), within=60)
    assert ended["status"] == "completed"
    rows = studio.rows("select step, watermark from callkeeper.jobs where run_id = :id", id=ended["id"])
    assert {row["step"]: row["watermark"] for row in rows} == {"scene:1": False, "last": True}
    studio.check()
