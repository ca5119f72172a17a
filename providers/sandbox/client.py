"""Spawns and steers a sandbox process. For tests, the demo and the benchmark; knows nothing of pytest."""

import select
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

START_SECONDS = 30.0


class Sandbox:
    """A sandbox in a process of its own, as a context manager.

    with Sandbox() as sandbox:
        sandbox.script({"defaults": {"run_seconds": 2}})
        ...
        assert sandbox.totals()["replicate"] == 1

    `directory` keeps the bill (and lets it outlive this object); without it, a temporary one is used. The
    port stays the same when it is stopped and started again, and so do its tasks.
    """

    def __init__(
        self,
        *,
        directory: Path | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        webhook_secret: str | None = None,
    ) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="sandbox-") if directory is None else None
        self.directory = Path(self._scratch.name) if self._scratch else Path(str(directory))
        self._host, self._port, self._webhook_secret = host, port, webhook_secret
        self._client = httpx.Client(trust_env=False, timeout=30.0)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Spawn it and wait until it takes requests. RuntimeError when it does not come up; it is closed then."""
        command = [sys.executable, "-m", "providers.sandbox", "--host", self._host, "--port", str(self._port)]
        command += ["--bill", str(self.bill_path), "--port-file", "-", "--with-parent"]
        if self._webhook_secret is not None:
            command += ["--webhook-secret", self._webhook_secret]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        self._process, told = process, process.stdout
        line = told.readline() if told and select.select([told], [], [], START_SECONDS)[0] else b""
        if not line:
            self.close()
            raise RuntimeError("the sandbox did not start")
        self._port = int(line)
        return self

    def stop(self) -> None:
        """End the process; the bill stays. Safe to call twice."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def close(self) -> None:
        """End it for good; a temporary directory goes with it."""
        self.stop()
        self._client.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    @property
    def bill_path(self) -> Path:
        return self.directory / "bill.sqlite"

    @property
    def pid(self) -> int:
        """The process id, for a test that stops or kills it. RuntimeError when it does not run."""
        if self._process is None:
            raise RuntimeError("the sandbox is not running")
        return self._process.pid

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        """The root. It is the base URL of Anthropic, KIE, ElevenLabs and HeyGen here; see below for the others."""
        return f"http://{self._host}:{self._port}"

    @property
    def replicate_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def kie_url(self) -> str:
        return self.url

    @property
    def elevenlabs_url(self) -> str:
        return self.url

    @property
    def openrouter_url(self) -> str:
        return f"{self.url}/api/v1"

    @property
    def heygen_url(self) -> str:
        return self.url

    @property
    def netloc(self) -> str:
        """host:port, as `download.fetch` wants it among its insecure hosts."""
        return f"{self._host}:{self._port}"

    def bill(self, *, containing: str | None = None) -> list[dict[str, Any]]:
        """Accepted creates, oldest first; only those whose input JSON contains a text, if given."""
        shown = self._get("bill", {} if containing is None else {"input": containing})
        return list(shown["creates"])

    def totals(self, *, containing: str | None = None) -> dict[str, int]:
        """Accepted creates by kind (`replicate`, `elevenlabs`, …) and `all`; a kind without any counts 0."""
        query = {"totals": "1"} | ({} if containing is None else {"input": containing})
        return Counter(self._get("bill", query)["totals"])

    def stats(self) -> dict[str, Any]:
        """`requests` by route, `rules` fired, `webhooks` by result, `open_tasks`, and `most_at_once` by provider."""
        return self._get("stats", {})

    def script(self, script: Mapping[str, Any]) -> None:
        """Replace the script. ValueError with the reason when it is not one."""
        self._post("script", script)

    def reset(self) -> None:
        """Empty bill, tasks, counters and script."""
        self._post("reset", {})

    def advance(self, seconds: float) -> None:
        """Move the sandbox's clock forward."""
        self._post("clock", {"advance": seconds})

    def finish(self, task_id: str) -> None:
        """End a running task now, as its script says it ends."""
        self._post(f"tasks/{task_id}/finish", {})

    def _get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        response = self._client.get(f"{self.url}/_sandbox/{path}", params=query)
        response.raise_for_status()
        return dict(response.json())

    def _post(self, path: str, body: Mapping[str, Any]) -> None:
        response = self._client.post(f"{self.url}/_sandbox/{path}", json=dict(body))
        if response.is_client_error:
            raise ValueError(response.text)
        response.raise_for_status()

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
