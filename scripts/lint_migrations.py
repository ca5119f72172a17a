"""`lint_migrations.py [FOLDER]`: lints the SQL that migrations will run, a revision at a time. Exits 1 on a finding."""

import re
import subprocess
import sys
from pathlib import Path

from store import migrate

ROOT = Path(__file__).parents[1]
# Before the first marker stands what Alembic itself and env.py say, the same each time.
MARKER = re.compile(r"^-- Running upgrade .*? -> (\S+)$", re.MULTILINE)
# Alembic opens one around each revision, except where CONCURRENTLY forbids it; squawk is told so by its option.
TRANSACTION = re.compile(r"^(BEGIN|COMMIT);$", re.MULTILINE)

# IF NOT EXISTS would keep a broken leftover of a concurrent build: migrations/__init__.py drops it, and sets timeouts.
EXCLUDED = "prefer-robust-stmts,require-timeout-settings"


def by_revision(rendered: str) -> list[tuple[str, str]]:
    """Each revision's name and SQL."""
    _, *parts = MARKER.split(TRANSACTION.sub("", rendered))
    return list(zip(parts[::2], parts[1::2], strict=True))


def lint(revision: str, text: str) -> bool:
    """Whether squawk has nothing to say; it prints what it has."""
    concurrent = "concurrently" in text.lower()
    command = [
        str(Path(sys.executable).with_name("squawk")),
        "--config",
        str(ROOT / ".squawk.toml"),
        "--reporter=gcc",
        f"--stdin-filepath=revision-{revision}.sql",
        *([f"--exclude={EXCLUDED}"] if concurrent else ["--assume-in-transaction"]),
    ]
    return subprocess.run(command, input=text, text=True, check=False).returncode == 0


def main() -> int:
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        migrate.location = lambda: folder
    clean = [lint(revision, text) for revision, text in by_revision(migrate.render_sql())]
    if not clean:
        print("no revision was found to lint")
        return 1
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
