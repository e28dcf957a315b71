"""The service at the terminal: start it, ask about images, look after the store, and see how fast it is.

`python -m service.cli chat --image page.png "What is the total?"`. The service's address and key come from
`--url` and `--key`, or from `CONDUIT_URL` and `CONDUIT_KEY`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from service.cli.bench import add_bench
from service.cli.cache import add_cache
from service.cli.chat import add_chat
from service.cli.client import CommandFailed, Service
from service.cli.serve import add_serve

DEFAULT_URL: Final = "http://127.0.0.1:8000"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(prog="conduitctl", description=(__doc__ or "").split("\n", 1)[0])
    main.add_argument("--url", default=os.environ.get("CONDUIT_URL", DEFAULT_URL))
    main.add_argument("--key", default=os.environ.get("CONDUIT_KEY"))
    verbs = main.add_subparsers(required=True, metavar="serve | chat | cache | bench")
    add_serve(verbs.add_parser("serve", help="run the service"))
    add_chat(verbs.add_parser("chat", help="ask about images; without a question, a conversation"))
    cache = verbs.add_parser("cache", help="look at the store and look after it").add_subparsers(
        required=True
    )
    add_cache(cache)
    add_bench(verbs.add_parser("bench", help="a short load, and what its users saw"))
    return main


def main(arguments: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Run one command; 0, or 1 with the reason on standard error. `serve` has the service's own status."""
    options = parser().parse_args(arguments)
    if "start" in options:
        status: int = options.start(options)
        return status
    try:
        with Service(options.url, options.key) as service:
            options.run(service, options, out or sys.stdout)
    except CommandFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
