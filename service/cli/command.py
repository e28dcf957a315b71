"""What every command that talks to a service has in common: address, key, form of the output, failures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from service.cli.client import DEFAULT_URL, CommandFailed, Service
from service.cli.terminal import Terminal

Url = Annotated[
    str, typer.Option("--url", envvar="CONDUIT_URL", help="Where the service is, with or without /v1.")
]
Key = Annotated[
    str, typer.Option("--key", envvar="CONDUIT_API_KEY", show_envvar=True, help="The key to ask with.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON: one document, or one a line where there are many.")
]

_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
_COMMON: Final = (
    inspect.Parameter("url", _KEYWORD, default=DEFAULT_URL, annotation=Url),
    inspect.Parameter("key", _KEYWORD, default="", annotation=Key),
    inspect.Parameter("as_json", _KEYWORD, default=False, annotation=Json),
)


def register(app: typer.Typer, name: str, run: Callable[..., None]) -> None:
    """Make `run(service, terminal, ...)` the command `name`: its further parameters are the command's own, its
    docstring is the help. A `CommandFailed` ends it with status 1."""

    def invoke(url: str, key: str, as_json: bool, **options: Any) -> None:
        terminal = Terminal(as_json)
        try:
            with Service(url, key) as service:
                run(service, terminal, **options)
        except CommandFailed as error:
            terminal.failed(error.message, error.code)
        except UnicodeError:
            terminal.failed("An argument is not valid text.", "invalid_text")
        except (KeyError, TypeError, IndexError):  # JSON, but none of our shapes
            terminal.failed(f"What {url} answered is not from Conduit.", "not_conduit")
        else:
            return
        raise typer.Exit(1)

    own = list(inspect.signature(run, eval_str=True).parameters.values())[2:]
    parameters = [*(parameter.replace(kind=_KEYWORD) for parameter in own), *_COMMON]
    invoke.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    invoke.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    invoke.__doc__ = run.__doc__
    app.command(name)(invoke)
