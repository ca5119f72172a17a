"""The same fleets and sandbox as the chaos tests use."""

from tests.chaos.conftest import _crew, _one_sandbox, crew, fleet, make_fleet, pytest_runtest_makereport, sandbox

__all__ = ["_crew", "_one_sandbox", "crew", "fleet", "make_fleet", "pytest_runtest_makereport", "sandbox"]
