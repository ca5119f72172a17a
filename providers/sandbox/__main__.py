"""`python -m providers.sandbox`: serve the fake providers."""

import argparse
from pathlib import Path

from providers.sandbox.app import WEBHOOK_SECRET, serve
from providers.sandbox.script import Script


def main() -> None:
    parser = argparse.ArgumentParser(prog="providers.sandbox", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765, help="0 picks a free one")
    parser.add_argument("--bill", type=Path, required=True, help="SQLite file of what was accepted; kept between runs")
    parser.add_argument("--port-file", type=Path, help="gets the port once requests are taken; - is standard output")
    parser.add_argument("--script", type=Path, help="JSON file with the script to start with")
    parser.add_argument("--webhook-secret", default=WEBHOOK_SECRET, help="whsec_... that signs the fake webhooks")
    parser.add_argument("--with-parent", action="store_true", help="stop when standard input ends")
    given = parser.parse_args()
    serve(
        given.host,
        given.port,
        bill=given.bill,
        port_file=given.port_file,
        script=Script.model_validate_json(given.script.read_bytes()) if given.script else None,
        webhook_secret=given.webhook_secret,
        with_parent=given.with_parent,
    )


if __name__ == "__main__":
    main()
