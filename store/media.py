"""Media bytes in an object store: a local folder by default, S3-compatible, GCS or Azure by URL.

A key carries the job and the call generation, so the bytes of one upstream task never overwrite those of another. An
object without an asset row is nobody's yet; the row is written in the settlement.
"""

from os import SEEK_END
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

NOT_KEPT = (OSError, BaseError)  # what `put` raises

_ONE_PUT = 16 * 1024**2  # bytes; below, one request is both faster and all-or-nothing by itself


class MediaStore:
    """`url` is a folder's path, or an object store's URL (`s3://bucket/prefix`; credentials from the environment)."""

    def __init__(self, url: str) -> None:
        if "://" not in url:
            folder = Path(url).expanduser().resolve()
            folder.mkdir(parents=True, exist_ok=True)
            url = folder.as_uri()
        self.url = url
        self._store = from_url(url)

    async def put(self, key: str, file: BinaryIO, *, content_type: str) -> None:
        """Store the whole file under `key`; nobody ever sees half of it. Raises OSError or obstore's BaseError."""
        size = file.seek(0, SEEK_END)
        file.seek(0)
        attributes = None if self.url.startswith("file:") else {"Content-Type": content_type}
        await obstore.put_async(self._store, key, file, attributes=attributes, use_multipart=size > _ONE_PUT)

    def get(self, key: str) -> bytes:
        """The bytes under `key`. Raises FileNotFoundError."""
        return bytes(obstore.get(self._store, key).bytes())

    def fetch(self, key: str, path: Path) -> None:
        """The same into a local file, without ever holding all of them. Raises FileNotFoundError."""
        stream = obstore.get(self._store, key).stream()
        with path.open("wb") as file:
            for chunk in stream:
                file.write(chunk)

    def keys(self, prefix: str = "media/") -> list[str]:
        return [item["path"] for batch in obstore.list(self._store, prefix=prefix) for item in batch]


def object_key(job_id: UUID, *, generation: int, position: int, sha256: str, extension: str) -> str:
    """`media/<job>/<generation>/<position>-<sha>.<ext>`: only the same bytes of the same task have the same key."""
    return f"media/{job_id}/{generation}/{position}-{sha256[:16]}.{extension}"
