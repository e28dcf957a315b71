"""The service in this process: `serve`."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def serve(
    model: Annotated[str | None, typer.Argument(help="Hub name or path of a checkpoint.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[str | None, typer.Option()] = None,
    demo: Annotated[bool, typer.Option("--demo", help="With pages to ask about.")] = False,
) -> None:
    """Run the service. All further settings come from the environment (docs/operations.md)."""
    from service.settings import PREFIX  # its libraries take longer to import than other commands to run

    given = {"model": model, "host": host, "port": port, "demo": "true" if demo else None}
    for name, value in given.items():
        if value is not None:
            # Into the environment, because the worker's process reads its settings there too.
            os.environ[PREFIX + name.upper()] = value
    from service.__main__ import serve as run  # the composition root; no other command needs an engine

    raise typer.Exit(run())
