"""The command as it is typed, within the test's process."""

from __future__ import annotations

import httpx
from typer.testing import CliRunner, Result

from service.cli.app import app


def conduit(*arguments: str, typed: str | None = None, **environment: str) -> Result:
    """What `conduit` does with `arguments`; `typed` is its standard input. No traceback, whatever happens."""
    done = CliRunner().invoke(app, arguments, input=typed, env=environment, prog_name="conduit")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def run(api: httpx.Client, *arguments: str, typed: str | None = None) -> str:
    """The output of a command that works, asked of `api`."""
    done = conduit(*arguments, "--url", str(api.base_url), typed=typed)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def refused(api: httpx.Client, *arguments: str) -> str:
    """What a command that fails says on standard error."""
    done = conduit(*arguments, "--url", str(api.base_url))
    assert done.exit_code == 1, done.output
    return done.stderr
