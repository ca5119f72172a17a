"""The child's side: one request a line on standard input, one answer a line on standard output, until input ends.

A request is {"path", "kind", "limits"}; an answer is {"verdict": {...}} or {"fault", "why"}. What ends the process
without an answer is for the parent to notice.
"""

import json
import os
import resource
import select
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from providers.verify.decode import examine
from providers.verify.words import Fault, Limits, Refused

_FILES = 16  # descriptors: three standard ones, the file, and a few of the libraries'


def main() -> None:
    """Answer until standard input ends."""
    _confine()
    for line in sys.stdin.buffer:
        answer = _answer(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    limits = Limits(**request["limits"])
    _grant(limits)
    try:
        path = Path(request["path"])
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            verdict = examine(file, size, request["kind"], limits, _leave_with_parent)
    except Refused as refused:
        return {"fault": refused.fault, "why": refused.why}
    except MemoryError:
        return {"fault": Fault.UNREADABLE, "why": "memory ran out"}
    except OSError as error:
        return {"fault": Fault.UNREADABLE, "why": type(error).__name__}
    return {"verdict": asdict(verdict)}


def _confine() -> None:
    """For good: it writes no file, leaves no core, opens few."""
    for what, most in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, _FILES)):
        resource.setrlimit(what, (most, most))


def _grant(limits: Limits) -> None:
    """What this one file may cost, on top of what earlier ones have used."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(
        resource.RLIMIT_CPU, (int(spent.ru_utime + spent.ru_stime) + limits.cpu_seconds + 1, resource.RLIM_INFINITY)
    )
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, resource.RLIM_INFINITY))


def _leave_with_parent() -> None:
    """A parent that was killed waits for no answer."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)
    if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
        os._exit(0)


if __name__ == "__main__":
    main()
