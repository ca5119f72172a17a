"""`check_sizes.py [ROOT]`: small rooms. Exits 1 on a file or function that is too long.

A file aims at 300 lines and a function at 40 without its docstring; the rest is grace for a line or two too many.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("actors", "store", "providers", "web", "migrations")
FILE_LINES = 320
FUNCTION_LINES = 45

Function = ast.FunctionDef | ast.AsyncFunctionDef


def findings(root: Path) -> list[str]:
    """One line for each file and function that is too long."""
    files = sorted(path for room in ROOMS for path in (root / room).rglob("*.py"))
    return [finding for path in files for finding in _in_file(path, str(path.relative_to(root)))]


def _in_file(path: Path, name: str) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > FILE_LINES:
        yield f"{name}: {lines} lines, more than {FILE_LINES}: split it by capability"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function) and _length(node) > FUNCTION_LINES:
            yield f"{name}:{node.lineno}: {node.name} has {_length(node)} lines, more than {FUNCTION_LINES}"


def _length(function: Function) -> int:
    end = function.end_lineno or function.lineno
    first = function.body[0]
    told = 0
    if ast.get_docstring(function) is not None:
        told = (first.end_lineno or first.lineno) - first.lineno + 1
    return end - function.lineno + 1 - told


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    found = findings(root)
    print("\n".join(found) if found else "sizes: all rooms are small")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
