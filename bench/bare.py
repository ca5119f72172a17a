"""The yardstick: the same HTTP requests by bare httpx, in as many processes, without database or thought for failure.

Run as a program: `python -m bench.bare BASE COUNT KIND AT_ONCE`; prints the seconds it took.
"""

import asyncio
import subprocess
import sys
import time

import httpx


async def _picture(client: httpx.AsyncClient, base: str, number: int) -> None:
    made = await client.post(f"{base}/v1/models/acme/draw/predictions", json={"input": {"prompt": f"bare {number}"}})
    seen = (await client.get(f"{base}/v1/predictions/{made.json()['id']}")).json()
    file = await client.get(seen["output"][0] if isinstance(seen["output"], list) else seen["output"], headers=_ONCE)
    if made.status_code >= 300 or not file.content:
        raise RuntimeError(f"the sandbox answered {made.status_code} and {len(file.content)} bytes")


async def _text(client: httpx.AsyncClient, base: str, number: int) -> None:
    body = {"model": "claude-x", "max_tokens": 16, "messages": [{"role": "user", "content": f"bare {number}"}]}
    (await client.post(f"{base}/v1/messages", json=body)).json()["content"]


_ONCE = {"connection": "close"}  # a download's connection is used once by both sides
_HEADERS = {"authorization": "Bearer bench", "x-api-key": "bench", "anthropic-version": "2023-06-01"}


async def run(base: str, count: int, kind: str, at_once: int) -> float:
    """Seconds for `count` calls, `at_once` at a time."""
    one = _picture if kind == "picture" else _text
    places = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(headers=_HEADERS, timeout=30) as client:

        async def placed(number: int) -> None:
            async with places:
                await one(client, base, number)

        await asyncio.gather(*(placed(-number - 1) for number in range(20)))
        started = time.perf_counter()
        await asyncio.gather(*(placed(number) for number in range(count)))
        return time.perf_counter() - started


def in_processes(base: str, count: int, kind: str, *, processes: int, at_once: int) -> float:
    """Calls a second over all processes."""
    share = count // processes
    command = [sys.executable, "-m", "bench.bare", base, str(share), kind, str(at_once)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    seconds = max(float(process.communicate()[0]) for process in running)
    return share * processes / seconds


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
