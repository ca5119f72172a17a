"""Loaded into a worker: its wall clock goes SKEW seconds wrong. What decides by the database's clock does not care."""

import os
import time

_true = time.time
_skew = float(os.environ["SKEW"])


def _wrong() -> float:
    return _true() + _skew


time.time = _wrong
