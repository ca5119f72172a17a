"""A response's bytes, up to a limit, however it is read: whole or as it comes."""

from collections.abc import AsyncIterator

import httpx

from providers.errors import Fate, ProviderError, Remedy


class Bounded(httpx.AsyncByteStream):
    """Raises ProviderError (AMBIGUOUS, `response_too_large`) once more than `limit` bytes have come."""

    def __init__(self, stream: httpx.AsyncByteStream, limit: int, status: int) -> None:
        self._stream, self._limit, self._status = stream, limit, status

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > self._limit:
                raise ProviderError(
                    "response_too_large",
                    f"the response is larger than {self._limit} bytes",
                    fate=Fate.AMBIGUOUS,
                    remedy=Remedy.RETRY,
                    status=self._status,
                )
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
