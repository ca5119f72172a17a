"""Measurements, each one command, each figure beside its yardstick from the same run."""
