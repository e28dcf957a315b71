"""How the service is doing and what it runs: `health`, `models`."""

from __future__ import annotations

from typing import Any

from service.cli.client import CommandFailed, Service
from service.cli.terminal import Terminal


def health(service: Service, terminal: Terminal) -> None:
    """Is the service ready? Ends with status 1 where it is not."""
    ready = service.call("GET", "/readyz", accept=(503,))
    version = service.call("GET", "/version")
    terminal.document({"url": service.url, **version, **ready})
    model = version["model"]
    terminal.line(f"{service.url}: {ready['status']}, conduit {version['version']}")
    terminal.line(f"model {model['name']} on {model['device']} in {model['dtype']}")
    for trouble in (*ready["reasons"], *(f"degraded: {text}" for text in ready["degraded"])):
        terminal.line(f"  {trouble}")
    if ready["status"] != "ready":
        raise CommandFailed(f"{service.url} is not ready", "not_ready")


def models(service: Service, terminal: Terminal) -> None:
    """What the service runs, and which policies a request may name."""
    listed: dict[str, Any] = service.call("GET", "/v1/models")
    terminal.document(listed)
    for model in listed["data"]:
        ratio = model["default_refresh_ratio"]
        terminal.line(f"{model['id']}: {model['max_model_len']} tokens")
        if model["description"]:
            terminal.line(f"  {model['description']}")
        terminal.line(f"  policies: {', '.join(model['policies'])}")
        terminal.line(f"  default: {model['default_policy']} at {ratio:g}")
