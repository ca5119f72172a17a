"""A fake of the providers that a test can trust: real HTTP, its own bill, and faults only where a script
asks for them.

`python -m providers.sandbox` serves it; `Sandbox` spawns and steers it from a test, the demo or a benchmark.
The script's words are documented in `providers.sandbox.script`.
"""

from providers.sandbox.client import Sandbox

__all__ = ["Sandbox"]
