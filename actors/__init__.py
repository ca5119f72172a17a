"""Dramatiq actors and what they decide; the only place that knows both others."""
