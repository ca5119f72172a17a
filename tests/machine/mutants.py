"""`python -m tests.machine.mutants [WORD ...]`: take each guard of the store away and see the tests fail.

Each mutant is one change in a copy of the repository. It is killed by the tests that mutations.py names, with fixed seeds
and more examples than usual; a mutant that only breaks the collection of the tests counts as alive, as does one whose
text is no longer in the source, and one that only makes hypothesis complain about the machine itself. With words, only mutants whose name holds one of them. Exits 1 when any is alive.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from store import embedded
from tests.machine.budget_mutations import BUDGETS
from tests.machine.mutations import MACHINE, MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "store",
    "migrations",
    "actors",
    "providers",
    "tests/machine",
    "tests/store",
    "tests/runs",
    "tests/budgets",
    "tests/chaos",
    "tests/conftest.py",
    "pyproject.toml",
)
SEEDS = (1, 2)
EXAMPLES = "150"
GREEN, RED = 0, 1


class Verdict(NamedTuple):
    mutant: Mutant
    killed: bool
    words: str
    seconds: float


def copy_to(folder: Path) -> None:
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def as_written(old: str) -> re.Pattern[str]:
    """The same words with whatever white space is between them: lines may be broken anew."""
    inner = old.strip()
    start, end = old[: old.index(inner)], old[old.index(inner) + len(inner) :]
    words = r"\s+".join(map(re.escape, inner.split())).replace(r"\(", r"\(\s*").replace(r"\)", r"\s*\)")
    return re.compile(re.escape(start) + words + re.escape(end))


def mutate(folder: Path, mutant: Mutant) -> None:
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    for old, new in ((mutant.old, mutant.new), *mutant.also):
        found = list(as_written(old).finditer(text))
        if len(found) != 1 or old == new:
            raise LookupError(f"in {mutant.file}, {len(found)} times: {old!r}")
        text = text[: found[0].start()] + new + text[found[0].end() :]
    path.write_text(text, encoding="utf-8")


def tests_in(folder: Path, target: str, seed: int, url: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "TEST_DATABASE_URL": url, "CALLKEEPER_MACHINE_EXAMPLES": EXAMPLES, "CALLKEEPER_RANDOM": "1",
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    # A test that is named is run, however long it takes; of a whole file, what takes long is not.
    quick = () if "::" in target else ("-m", "not slow")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "--tb=line", "-p", "no:cacheprovider", *quick,
         f"--hypothesis-seed={seed}", target],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def seeds_of(target: str) -> tuple[int, ...]:
    return SEEDS if target == MACHINE else SEEDS[:1]


def reason(output: str) -> str:
    """The first word that the failing test had to say."""
    failed = re.search(r"^(?:FAILED|ERROR) \S*?::(\S+)", output, re.MULTILINE)
    said = re.search(r"^(?:E  +|/\S+:\d+: )(.+)$", output, re.MULTILINE)
    return f"{failed[1] if failed else '?'}: {said[1] if said else output.strip().splitlines()[-1]}"[:110]


def judge(mutant: Mutant, url: str) -> Verdict:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="callkeeper-mutant-") as name:
        folder = Path(name)
        copy_to(folder)
        try:
            mutate(folder, mutant)
        except LookupError as missing:
            return Verdict(mutant, False, str(missing), 0)
        for seed in seeds_of(mutant.by):
            done = tests_in(folder, mutant.by, seed, url)
            if done.returncode == RED and "FailedHealthCheck" not in done.stdout:
                return Verdict(mutant, True, reason(done.stdout), time.monotonic() - began)
            if done.returncode != GREEN:
                return Verdict(mutant, False, f"broken: {reason(done.stdout + done.stderr)}", time.monotonic() - began)
    return Verdict(mutant, False, "every test passed", time.monotonic() - began)


def healthy(targets: list[str], url: str) -> bool:
    """Without a mutation everything is green, in a copy that imports itself; otherwise no verdict means anything."""
    with tempfile.TemporaryDirectory(prefix="callkeeper-mutant-") as name:
        folder = Path(name)
        copy_to(folder)
        where = subprocess.run(
            [sys.executable, "-c", "import store; print(store.__file__)"],
            cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if not where.startswith(str(folder)):
            print(f"the copy imports {where}")
            return False
        runs = [(target, seed) for target in targets for seed in seeds_of(target)]
        for target, seed in runs:
            done = tests_in(folder, target, seed, url)
            if done.returncode != GREEN:
                print(f"without a mutation {target} is not green:\n{done.stdout[-2_000:]}{done.stderr[-1_000:]}")
                return False
    return True


def show(verdict: Verdict) -> None:
    by = verdict.mutant.by.removeprefix("tests/").removesuffix(".py")
    fate = f"killed by {by}" if verdict.killed else "SURVIVED"
    print(f"{verdict.mutant.name:44} {fate:34} {verdict.seconds:5.1f} s  {verdict.words}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    asked = parser.parse_args()
    chosen = [one for one in [*MUTANTS, *BUDGETS] if not asked.words or any(word in one.name for word in asked.words)]
    with tempfile.TemporaryDirectory(prefix="callkeeper-mutants-") as name, embedded.start(Path(name)) as server:
        if not healthy(sorted({mutant.by for mutant in chosen}), server.url):
            return 2
        with ThreadPoolExecutor(asked.jobs) as pool:
            verdicts = []
            for judged in as_completed([pool.submit(judge, mutant, server.url) for mutant in chosen]):
                verdicts.append(judged.result())
                show(verdicts[-1])
    alive = [verdict.mutant.name for verdict in verdicts if not verdict.killed]
    print(
        f"\n{len(verdicts)} mutants, {len(verdicts) - len(alive)} killed, {len(alive)} alive{': ' if alive else ''}{', '.join(alive)}"
    )
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
