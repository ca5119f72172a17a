"""One pass in a process of its own: `python -m tests.passes.one_pass [N]`. SIGKILLs itself before its N-th statement.

Settings come from the environment. Prints how many statements it made, if it lived.
"""

import os
import signal
import sys
import threading
import time
from typing import Any

from sqlalchemy import event

from actors.reconcile import Pass
from actors.runtime import Runtime
from actors.settings import load
from tests.passes import kit  # noqa: F401  # registers the job types


def main() -> None:
    die_at = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    rt = Runtime(load())
    made, lock = [0], threading.Lock()

    @event.listens_for(rt.db.engine, "before_cursor_execute")
    def count(*_: Any) -> None:
        with lock:
            made[0] += 1
            if made[0] == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    rt.start()
    rt.submit(Pass(rt).work(time.monotonic() + 60)).result()
    rt.stop()
    sys.stdout.write(f"{made[0]}\n")


if __name__ == "__main__":
    main()
