"""`check_names.py [ROOT]`: exits 1 where a tracked file names a package registry's host or a path of one machine.

A lock file or a Dockerfile that names a host works for one network only; a path of one machine works for nobody else.
"""

import re
import subprocess
import sys
from pathlib import Path

# Written in pieces, so that this file passes its own check.
HOSTS = (
    "pypi" + r"\.org",
    "python" + r"hosted\.org",
    "npmjs" + r"\.(org|com)",
    "golang" + r"\.org",
    "debian" + r"\.org",
)
PATHS = (
    "/wo" + "rk/",
    "/ro" + "ot/",
    "/ho" + "me/[a-z]",
    "/Us" + "ers/",
    "/opt/" + "(wheels|pypi)",
    r"\.\./sha" + "red",
)
FORBIDDEN = re.compile("|".join([*HOSTS, *(rf"(?<![\w.]){path}" for path in PATHS)]))


def findings(root: Path) -> list[str]:
    """One line for each place, in the files that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    paths = (root / name for name in sorted(set(listed.split("\0"))) if name)
    return [finding for path in paths if path.is_file() for finding in _in_file(path, root)]


def _in_file(path: Path, root: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [
        f"{path.relative_to(root)}:{number}: names {match.group()}"
        for number, line in enumerate(lines, start=1)
        if (match := FORBIDDEN.search(line))
    ]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    found = findings(root)
    print("\n".join(found) if found else "names: no registry host, no local path")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
