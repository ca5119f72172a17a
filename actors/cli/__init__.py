"""The command line, `callkeeper`."""

from actors.cli.app import main

__all__ = ["main"]
