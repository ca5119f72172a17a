"""An imaginary film app, registered alike in the tests and in the workers they start: scenes, a join, a plan."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from actors import Context, job_type
from actors.context import OutOfMemory, WorkFailed
from actors.steps import Step
from tests.chaos.faults import write_line

SCENE, JOIN = 5, 2  # credits


class Scene(BaseModel):
    prompt: str


class Join(BaseModel):
    """`starts`: a file that gets a line for every start. `fault` is what goes wrong at the first start, or always."""

    starts: str
    fault: str | None = None


class Plan(BaseModel):
    scenes: list[str]
    starts: str


@job_type("film.scene", request=Scene, kind="replicate-prediction", price=SCENE, heavy=True)
def scene(asked: Scene) -> dict[str, Any]:
    return {"model": "acme/video", "input": {"prompt": asked.prompt}}


@job_type("film.words", request=Scene, kind="anthropic-sync", price=1)
def words(asked: Scene) -> dict[str, Any]:
    return {
        "model": "claude-test",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": asked.prompt}],
    }


@job_type("film.join", request=Join, price=JOIN, retry_safe=True, heavy=True)
def join(context: Context, asked: Join) -> dict[str, Any]:
    first = not Path(asked.starts).exists()
    write_line(Path(asked.starts), f"{os.getpid()} {context.step} {context.attempt}")
    if asked.fault and (first or asked.fault.startswith("always ")):
        _go_wrong(asked.fault.removeprefix("always "))
    parts = context.outcomes()
    folder = Path(asked.starts).parent
    sizes = {}
    for name, outcome in parts.items():
        for entry in (outcome.result or {}).get("media", []):
            target = folder / f"{context.job_id}-{name.replace(':', '-')}"
            context.fetch(entry["object_key"], target)
            sizes[name] = target.stat().st_size
    missing = sorted(name for name, outcome in parts.items() if outcome.status != "completed")
    if missing:
        context.warn("scene_dropped", quality="degraded", details={"missing": ",".join(missing)})
    film = folder / f"{context.job_id}-film.txt"
    film.write_text(repr(sizes))
    context.keep(film, "text/plain")
    return {"sizes": sizes, "missing": missing}


def _go_wrong(fault: str) -> None:
    match fault:
        case "oom":
            raise OutOfMemory("the film is too long for this machine")
        case "memory_error":
            raise MemoryError
        case "child_killed":
            kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
            subprocess.run([sys.executable, "-c", kill], check=True)
        case "worker_killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            raise WorkFailed(fault, "it cannot be made into a film; s3cr3t stack trace of ffmpeg")


@job_type("film.plan", request=Plan, price=1, retry_safe=True)
def plan(context: Context, asked: Plan) -> dict[str, Any]:
    scenes = [Step(f"scene:{n}", "film.scene", {"prompt": prompt}) for n, prompt in enumerate(asked.scenes, 1)]
    last = Step("film", "film.join", {"starts": asked.starts}, depends_on=[one.name for one in scenes])
    context.add_steps([*scenes, last])
    return {"scenes": len(scenes)}
