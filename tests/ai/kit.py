"""The models and the priced AI type of an imaginary app, alike in the tests and in the workers they start."""

import os

from actors import Ended, on_completed, register_ai_task, register_profile
from tests.chaos.faults import write_line

CREDITS = 2

register_profile("small", kind="anthropic-sync", model="claude-small", price_in=1_000_000, price_out=5_000_000)
register_profile("large", kind="kie-llm", model="claude-large", price_in=3_000_000, price_out=15_000_000)
# A worker of a release that no longer has it.
if "OTHER_IS_GONE" not in os.environ:
    register_profile("other", kind="kie-llm", model="gpt-5-2", price_in=2_000_000, price_out=8_000_000)
register_ai_task("priced", price=CREDITS)
register_ai_task("asked-once", price=CREDITS, retry_safe=False)


@on_completed("priced")
def thank(ended: Ended) -> None:
    if path := os.environ.get("THANKED"):
        write_line(path, str(ended.job_id))
