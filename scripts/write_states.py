"""`write_states.py [--check]`: writes docs/states.md from store/states.py. --check: exits 1 if that is out of date."""

import sys
from pathlib import Path

from store.states import OPEN, TERMINAL, TRANSITIONS, State, Transition

PATH = Path(__file__).parents[1] / "docs" / "states.md"
HEAD = """# States

Written by `scripts/write_states.py` from `store/states.py`.

A job is open while it is {open}. It has ended once it is {terminal}.
What has ended never changes again: the database itself refuses it.

"""


def render() -> str:
    """The whole page."""
    head = HEAD.format(open=_listed(OPEN), terminal=_listed(TERMINAL))
    table = ["| verb | from | to | only if |", "|---|---|---|---|"]
    table += [
        f"| `{name}` | {_from(one)} | {one.target or 'stays'} | {one.guard} |" for name, one in TRANSITIONS.items()
    ]
    return head + _diagram() + "\n" + "\n".join(table) + "\n"


def _diagram() -> str:
    verbs: dict[tuple[str, str], list[str]] = {}
    for name, one in TRANSITIONS.items():
        if one.target is not None:
            for source in one.sources or ("[*]",):
                verbs.setdefault((str(source), str(one.target)), []).append(name)
    lines = [f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in verbs.items()]
    lines += [f"    {state} --> [*]" for state in TERMINAL]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def _from(one: Transition) -> str:
    return " or ".join(map(str, one.sources)) or "nothing"


def _listed(states: tuple[State, ...]) -> str:
    *first, last = (f"`{state}`" for state in states)
    return f"{', '.join(first)} or {last}"


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PATH.write_text(render(), encoding="utf-8")
        print(f"{PATH.name} is written")
        return 0
    fresh = PATH.exists() and PATH.read_text(encoding="utf-8") == render()
    print(
        "states: docs/states.md is up to date"
        if fresh
        else "docs/states.md is out of date: run scripts/write_states.py"
    )
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main())
