"""The service in this process: `serve`."""

from __future__ import annotations

import argparse
import os


def add_serve(serve: argparse.ArgumentParser) -> None:
    """The options of `serve`: settings that are often given by hand. All others come from the environment."""
    serve.add_argument("model", nargs="?", help="hub name or path of a checkpoint")
    serve.add_argument("--host", help="address to listen on")
    serve.add_argument("--port")
    serve.add_argument("--demo", action="store_const", const="true", help="with pages to ask about")
    serve.set_defaults(start=_serve)


def _serve(options: argparse.Namespace) -> int:
    from service.settings import PREFIX  # its libraries take longer to import than other verbs to run

    for name in ("model", "host", "port", "demo"):
        value = getattr(options, name)
        if value is not None:
            # Into the environment, because the worker's process reads its settings there too.
            os.environ[PREFIX + name.upper()] = value
    from service.__main__ import serve  # the composition root; no other verb needs an engine

    return serve()
