"""`write_providers.py [--check]`: writes docs/providers.md from the registry. --check: exits 1 if it is out of date."""

import sys
from pathlib import Path

from providers.registry import KINDS, PASS_PERIOD
from providers.table import COLUMNS, row, span

PATH = Path(__file__).parents[1] / "docs" / "providers.md"
HEAD = """# Providers

Written by `scripts/write_providers.py` from the registry; `callkeeper providers` prints the same, with `--json` for
programs. [adding-a-kind.md](adding-a-kind.md) adds one.

"""
LEGEND = f"""
- **stale after**: a call that is still open then is looked at by the pass that comes every {span(PASS_PERIOD)}. Both
  together are at most half of what a result lives, or the kind is refused at import.
- **longest run**: of an asynchronous task, or of a synchronous request from its connect to its last byte.
- **result lives**: how long a finished result can be fetched, at the least; a dash where it comes with the answer.
- **finds lost**: whether a task whose create was never answered can be found at the provider. Where it cannot, only its
  callback or its receipt brings it home; otherwise the call fails after its quiet period, and is refunded.
- **cancels**: whether a stop ends the task at the provider. Where it does not, the task runs on there, unheeded.
- **idempotent**: whether a create that is sent twice under one key is sure to be billed once. Where that is not sure,
  nothing here relies on it.
- **callbacks**: signed ones are verified on their raw bytes. They only ever cause a poll.
- **meter**: what the provider's own account of a call counts, as `usage` of the result and for the job type's `cost`.
"""


def render() -> str:
    """The whole page."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for name in sorted(KINDS):
        kind, *cells = row(KINDS[name])
        lines.append(f"| {' | '.join([f'`{kind}`', *cells])} |")
    hosts = ["", "Results are fetched from these hosts only (a leading dot: and their subdomains); `media_hosts` in"]
    hosts += ["`CALLKEEPER_KINDS` replaces the list.", ""]
    for name in sorted(KINDS):
        if KINDS[name].media_hosts:
            hosts.append(f"- `{name}`: {', '.join(f'`{host}`' for host in KINDS[name].media_hosts)}")
    return HEAD + "\n".join(lines) + "\n" + LEGEND + "\n".join(hosts) + "\n"


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PATH.write_text(render(), encoding="utf-8")
        print(f"{PATH.name} is written")
        return 0
    fresh = PATH.exists() and PATH.read_text(encoding="utf-8") == render()
    print(
        "docs/providers.md is up to date"
        if fresh
        else "docs/providers.md is out of date: run scripts/write_providers.py"
    )
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main())
