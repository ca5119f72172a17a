"""Real files, cut anywhere: whether the wire shows it or only decoding does, none is kept, and each is fetched again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest

from actors.classify import Act, Patience, after_download_error
from actors.results import import_media
from actors.settings import Settings
from providers.contract import Account, Media
from providers.errors import DownloadError
from providers.http import make_client
from providers.media_check import MediaCheck
from providers.registry import get_kind
from store.media import MediaStore
from tests.providers.media import RECIPES, expected, made

HOST = "127.0.0.1:8080"
URL = f"http://{HOST}/file"
PATIENCE = Patience(base=2, cap=300, throttled=15, operator=60)
# Every single percent is tried on the decoder itself, in the providers' tests.
PERCENTS = (10, 50, 90, 99)
# Nothing but frames, without a total: cut between two of them, the rest is whole. Only the wire shows that.
BARE = {"aac", "bare mp3"}


class Server(httpx.AsyncBaseTransport):
    """Serves one file, cut at a byte: announced as whole (`honest` false), or as if it were no longer than that."""

    def __init__(self) -> None:
        self.whole, self.cut, self.announces = b"", 0, True

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        length = len(self.whole) if self.announces else self.cut
        headers = {"content-length": str(length)}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(self.whole[: self.cut]))


class Importer:
    """As much of a process as an import needs."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.server = Server()
        self.store = MediaStore(str(folder))
        self.check = MediaCheck()
        options = Settings(insecure_media_hosts=[HOST])
        client = make_client(transport=self.server)
        self.rt: Any = SimpleNamespace(
            options=options, client=client, media=self.store, media_check=self.check
        )  # fmt: skip

    def bring(self, kind: str, whole: bytes, cut: int, *, announces: bool) -> str:
        """`kept`, or the code of what went wrong."""
        self.server.whole, self.server.cut, self.server.announces = whole, cut, announces
        job: Any = SimpleNamespace(
            lease=SimpleNamespace(job_id=uuid4()), call=SimpleNamespace(generation=1), watermark=False
        )
        account = Account("test", "https://api.example", "key")
        work = import_media(self.rt, job, get_kind("replicate-prediction"), account, [Media(URL, kind)])
        broken: DownloadError | None = None
        try:
            (asset,) = self.runner.run(work)
        except DownloadError as error:
            broken = error
        if broken is None:
            assert self.store.get(asset.object_key) == whole[:cut]
            return "kept"
        again = after_download_error(broken, misses=0, failures=0, at_most=12, patience=PATIENCE)
        assert again.act is Act.POLL_AGAIN, f"{broken} is not fetched again"
        assert self.store.keys(f"media/{job.lease.job_id}") == []
        return broken.code


@pytest.fixture(scope="module")
def importer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Importer]:
    one = Importer(tmp_path_factory.mktemp("kept"))
    yield one
    one.runner.run(one.check.close())
    one.runner.close()


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_cut_file_is_not_kept_and_fetched_again(importer: Importer, name: str) -> None:
    whole, kind = made(name), expected(name)
    for percent in PERCENTS:
        cut = len(whole) * percent // 100
        assert importer.bring(kind, whole, cut, announces=True) == "result_truncated"
        if name not in BARE:
            assert importer.bring(kind, whole, cut, announces=False) in ("result_truncated", "result_corrupt")
    assert importer.bring(kind, whole, len(whole), announces=True) == "kept", "and whole the next time, it is"


@pytest.mark.parametrize("percent", range(10, 100))
def test_what_no_decoder_knows_is_measured_by_the_wire(importer: Importer, percent: int) -> None:
    weights = bytes(range(256)) * 40
    assert importer.bring("file", weights, len(weights) * percent // 100, announces=True) == "result_truncated"
