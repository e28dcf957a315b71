"""The command `conduit`: start the service, ask about images, look after the store, and see how fast it is."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from service.cli.bench import bench
from service.cli.cache import add_cache
from service.cli.chat import chat
from service.cli.command import register
from service.cli.explain import explain
from service.cli.serve import serve
from service.cli.status import health, models
from service.version import VERSION

app = typer.Typer(
    help=(__doc__ or "").strip(),
    epilog="Every command takes --url and --key; without them CONDUIT_URL and CONDUIT_API_KEY count.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_cache = typer.Typer(help="Look at the store and look after it.", no_args_is_help=True)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"conduit {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("serve")(serve)
register(app, "chat", chat)
register(app, "explain", explain)
register(app, "models", models)
register(app, "health", health)
register(app, "bench", bench)
app.add_typer(_cache, name="cache")
add_cache(_cache)


def main() -> None:
    """What `conduit` runs: status 0, 1 with the reason on standard error, 2 for a command line that is none, 130 after
    an interrupt; `serve` has the service's own."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a sign gets another
            stream.reconfigure(errors="replace")
    app(prog_name="conduit")
