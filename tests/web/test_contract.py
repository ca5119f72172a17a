"""The OpenAPI document against the running API: no 5xx, no answer that is not described, no bad request let in."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.web.conftest import Site

# A cursor is text that only we can write, and what a job type's own model refuses beyond its schema is its own affair.
# An event stream ends with its job; of the others, one event is enough.
CONFIG = """
max-stream-events = 1
request-timeout = 20

[[operations]]
include-path = "/jobs"
checks.positive_data_acceptance.enabled = false
"""
PASSED = """
insert into callkeeper.passes (name, last_started_at, last_success_at)
select name, clock_timestamp(), clock_timestamp() from unnest(cast(:names as text[])) as name
"""


def ready_site(make_site: Callable[..., Site]) -> Site:
    """Everything well, so that /readyz has no reason for a 503."""
    from actors.readiness import expected_passes

    site = make_site()
    site.grant("ann", 10**9)
    site.do(PASSED, names=expected_passes())
    site.serve()
    site.work()
    return site


def explore(site: Site, folder: Path, token: str, *arguments: str) -> str:
    (folder / "schemathesis.toml").write_text(CONFIG)
    command = [Path(sys.executable).with_name("schemathesis"), "--config-file", folder / "schemathesis.toml", "run"]
    command += [f"{site.address}/openapi.json", "--header", f"Authorization: Bearer {token}", "--no-color"]
    command += ["--generation-database", "none", "--warnings", "off", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:] + site.web.text()[-3_000:]
    return done.stdout


def check(site: Site) -> None:
    assert "web.failed" not in site.web.text()
    assert site.rows("select * from callkeeper_audit.violations") == []


def test_every_answer_is_as_the_document_says(make_site: Callable[..., Site], tmp_path: Path) -> None:
    site = ready_site(make_site)
    said = explore(site, tmp_path, site.token("ann"), "--max-examples", "6", "--seed", "7")
    assert "API Links" in said, "the way from a submitted job to its page, events and stop was tried"
    operators = ("--include-path-regex", "^/operator", "--max-examples", "5", "--phases", "fuzzing")
    explore(site, tmp_path, site.operator_token(), *operators)
    check(site)


@pytest.mark.slow
def test_every_answer_is_as_the_document_says_over_many_examples(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    site = ready_site(make_site)
    explore(site, tmp_path, site.token("ann"), "--max-examples", "300")
    check(site)
