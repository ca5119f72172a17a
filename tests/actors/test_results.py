"""One file's way from a provider's address into the store, and what stands at the gate."""

import asyncio
import io
import wave
from contextlib import asynccontextmanager
from types import SimpleNamespace
from uuid import uuid4

import pytest

from actors.results import import_media
from actors.settings import Settings
from providers.contract import Account, Media
from providers.errors import DownloadError
from providers.http import make_client
from providers.media_check import MediaCheck
from providers.registry import get_kind
from providers.sandbox import files
from store.media import MediaStore

PNG = files.png("a" * 26, 0)
MP4 = files.mp4("a" * 26)


def wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(8000))
    return file.getvalue()


@asynccontextmanager
async def runtime(folder, *, verify=True):
    """As much of a process as an import needs."""
    check = MediaCheck()
    store = MediaStore(str(folder / "store"))
    try:
        async with make_client() as client:
            yield SimpleNamespace(options=Settings(verify_media=verify), client=client, media=store, media_check=check)
    finally:
        await check.close()


def bring(folder, *given, verify=True):
    """Import files that came with an answer. The assets, and how many children were started for it."""
    job = SimpleNamespace(lease=SimpleNamespace(job_id=uuid4()), call=SimpleNamespace(generation=1), watermark=False)
    account = Account("test", "https://api.example", "key")

    async def main():
        async with runtime(folder, verify=verify) as rt:
            media = [Media(url="", kind=kind, content=content) for kind, content in given]
            kept = await import_media(rt, job, get_kind("replicate-prediction"), account, media)
            assert [rt.media.get(asset.object_key) for asset in kept] == [content for _, content in given]
            return kept, len(rt.media_check._idle)

    return asyncio.run(main())


def test_whole_files_are_kept_as_they_came(tmp_path):
    kept, children = bring(tmp_path, ("image", PNG), ("video", MP4), ("audio", wav()))
    assert [asset.content_type for asset in kept] == ["image/png", "video/mp4", "audio/wav"]
    assert children == 1


@pytest.mark.parametrize(
    ("kind", "content", "code", "retryable"),
    [
        ("image", PNG[:-20], "result_truncated", True),
        ("video", MP4[: len(MP4) * 9 // 10], "result_truncated", True),
        ("image", PNG[:40] + b"\0" + PNG[41:], "result_corrupt", True),
        ("audio", wav()[:-100], "result_truncated", True),
    ],
)
def test_what_is_not_whole_is_not_kept(tmp_path, kind, content, code, retryable):
    with pytest.raises(DownloadError) as caught:
        bring(tmp_path, (kind, content))
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert not list((tmp_path / "store").rglob("*.*"))
    bring(tmp_path, (kind, content), verify=False)


def test_a_file_of_no_known_kind_is_not_decoded(tmp_path):
    _, children = bring(tmp_path, ("file", PNG[:-20]))
    assert children == 0
