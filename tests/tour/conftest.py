"""Tours are rendered by the chaos tests' real workers against the sandbox."""

from tests.chaos.conftest import _one_sandbox, make_fleet, pytest_runtest_makereport, sandbox

__all__ = ["_one_sandbox", "make_fleet", "pytest_runtest_makereport", "sandbox"]
