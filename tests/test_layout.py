"""The house as a whole: its checks report what they should, and what deploys it names things that exist."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ROLES = {
    "migrate": ["migrate"],
    "worker": ["worker"],
    "worker-large": ["worker", "--queues", "large"],
    "scheduler": ["scheduler"],
    "web": ["web", "--host", "0.0.0.0"],
}


def check(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_room_is_too_large() -> None:
    checked = check("check_sizes.py")
    assert checked.returncode == 0, checked.stdout


def function(lines: int, docstring: int = 0) -> str:
    told = ['    """Says much.', *["    more"] * (docstring - 2), '    """'] if docstring else []
    return "\n".join(["def long():", *told, *["    x = 1"] * (lines - 1), ""])


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("x = 1\n" * 320, ""),
        ("x = 1\n" * 321, "store/room.py: 321 lines"),
        (function(45), ""),
        (function(46), "store/room.py:1: long has 46 lines"),
        (function(45, docstring=10), ""),
        ("async " + function(46), "long has 46 lines"),
    ],
)
def test_too_large_a_room_is_reported(tmp_path: Path, text: str, finding: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "room.py").write_text(text)
    checked = check("check_sizes.py", str(tmp_path))
    assert checked.returncode == (1 if finding else 0)
    assert finding in checked.stdout


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("--index-url https://" + "pypi" + ".org/simple", False),
        ("cd /wo" + "rk/here", False),
        ("see ../sha" + "red/notes", False),
        ("pip install 'callkeeper[embedded]'", True),
        ("the network/router and homework/maths", True),
    ],
)
def test_hosts_and_local_paths_are_reported(tmp_path: Path, text: str, *, allowed: bool) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "notes.md").write_text(f"first line\n{text}\n")
    checked = check("check_names.py", str(tmp_path))
    assert checked.returncode == (0 if allowed else 1)
    assert allowed or checked.stdout.startswith("notes.md:2: ")


def test_lock_pins_everything_that_is_needed() -> None:
    """And nothing twice for one interpreter, and no address."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[^ ;]+( ; .+)?", line)] == []
    pinned = {line.split("==")[0] for line in lines}
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values()), "setuptools"]
    named = {re.match(r"[A-Za-z0-9_.-]+", item).group().lower().replace("_", "-") for item in wanted}
    assert named - pinned == {"callkeeper"}


def test_compose_runs_every_role_from_one_image() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services = dict(compose["services"])
    postgres = services.pop("postgres")
    assert {name: service["command"] for name, service in services.items()} == ROLES
    assert {(service["image"], service["build"]) for service in services.values()} == {("callkeeper", ".")}
    assert {service["environment"]["DATABASE_URL"] for service in services.values()} == {
        "postgresql://callkeeper:${POSTGRES_PASSWORD:-callkeeper}@postgres/callkeeper"
    }
    assert postgres["image"] == "postgres:18"
    assert "healthcheck" in postgres
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    after = {"migrate": {"condition": "service_completed_successfully"}}
    assert all(service["depends_on"] == after for name, service in services.items() if name != "migrate")
    used = {volume.split(":")[0] for service in [postgres, *services.values()] for volume in service["volumes"]}
    assert used == set(compose["volumes"])


def test_image_runs_as_nobody_special_from_the_lock() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    stages = [line for line in dockerfile.splitlines() if line.startswith("FROM ")]
    assert len(stages) == 2
    last = dockerfile[dockerfile.rindex("FROM ") :]
    assert re.search(r"^USER callkeeper$", last, re.MULTILINE)
    installs = [line for line in dockerfile.splitlines() if "pip install" in line]
    assert installs
    assert all("--constraint requirements.lock" in line for line in installs)


def test_installed_package_carries_its_migrations(tmp_path: Path) -> None:
    # From a copy: setuptools leaves what it built beside the sources, and would ship it again next time.
    source = tmp_path / "source"
    skipped = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=skipped)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    built = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path)], cwd=source, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        carried = set(wheel.namelist())
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "migrations").rglob("*") if path.is_file()}
    needed = {name for name in sources if name.endswith((".py", ".sql", ".mako"))}
    assert "migrations/versions/0001_foundation.sql" in needed
    assert needed - carried == set()


def test_make_says_what_it_can_do() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = {line.split()[1] for line in said.splitlines() if line.startswith("make ")}
    assert {"help", "demo", "test", "lint", "bench", "migrate", "test-long", "mutants", "lock", "clean"} == targets


def test_ci_is_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in script
    assert [line for line in script.splitlines() if line.startswith("make")] == ["make test </dev/null"]
