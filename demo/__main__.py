"""`make demo`: the real service, asked real questions over HTTP about real image URLs."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import numpy as np

from demo.asking import Answer, Refused, ask
from demo.pages import draw_pages
from demo.scenario import PAGES, Step, page_urls, request, steps, under_full_prefill
from demo.service_process import ROOT, ServiceDidNotStart, ServiceProcess, usable_cores
from demo.terminal import Terminal

SHIPPED = ROOT / "models" / "page-reader"
# Side of a page for the mid-size model: 32 x 32 visual tokens.
MID_EDGE = 896
MID_TOKENS = 8
TIMEOUT = 120.0


def main() -> int:
    terminal = Terminal()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="conduit-demo-") as folder:
            _shipped_model(terminal, Path(folder))
            _mid_size_model(terminal, Path(folder))
    except KeyboardInterrupt:
        terminal.line()
        terminal.line("Stopped.")
        return 130
    except (ServiceDidNotStart, Refused, httpx.HTTPError) as error:
        terminal.line()
        terminal.line(f"{terminal.style('The demo broke off:', 'red')} {error}")
        return 1
    return 0


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def threads() -> str:
    """Half the cores: a second thread on a core that is busy elsewhere makes everything slower, not faster."""
    return os.environ.get("CONDUIT_THREADS") or str(max(1, usable_cores() // 2))


def _shipped_model(terminal: Terminal, folder: Path) -> None:
    if not list(SHIPPED.glob("*.safetensors")):
        raise ServiceDidNotStart("the weights in models/page-reader are missing")
    terminal.title("1. The model that ships: page-reader, trained for this project")
    work = folder / "page-reader"
    work.mkdir()
    terminal.paragraph("Starting the service ...")
    with (
        ServiceProcess(work, model=str(SHIPPED), threads=threads(), chain="off") as service,
        _client(service) as client,
    ):
        terminal.paragraph(
            f"It runs at {service.url}, its store is empty. Every request is sent a second time with policy full, to "
            "compare. TTFT is the time to the first piece of the answer."
        )
        _warm_up(client, service)
        for step in steps():
            _show_step(terminal, service, client, step)
    terminal.line()
    terminal.paragraph(
        "This model is so small that fixed costs are most of its time: it shows that answers stay right, and little of "
        "what reuse saves. For that:"
    )


def _show_step(terminal: Terminal, service: ServiceProcess, client: httpx.Client, step: Step) -> None:
    terminal.line()
    terminal.line(terminal.style(f"{step.name}) {step.title}", "bold"))
    if step.restart:
        terminal.field("restart", f"took {service.restart():.1f} s")
        _warm_up(client, service)
    body = request(step, service.url)
    terminal.field("system", step.system or "(the default)")
    terminal.field("pages", ", ".join(page.tint for page in step.pages))
    terminal.field("question", step.question.text)
    terminal.open_field("answer")
    answer = ask(client, body, terminal.piece)
    terminal.line()
    terminal.field("expected", f"{step.question.answer}  {_mark(terminal, answer, step)}")
    full = answer if step.policy == "full" else ask(client, under_full_prefill(body))
    if step.name == "c":
        alone = ask(client, {**body, "cache": {"policy": "reuse", "chain": "off"}})
        terminal.field(
            "for show", f"the stored entries as they are (policy reuse) would answer: {alone.text}"
        )
    terminal.field("images", f"{_images(answer)}; {_tokens(answer)}")
    terminal.field("TTFT", f"{_milliseconds(answer)}; full prefill {_milliseconds(full)}")


def _mid_size_model(terminal: Terminal, folder: Path) -> None:
    # Only now: drawing random weights takes torch, the rest of the demo does not.
    from demo.random_model import MID_SIZE, write_random_model

    terminal.title("2. The same questions' shape on a mid-size model with RANDOM weights, made just now")
    terminal.paragraph("Drawing the weights and starting the service ...")
    model = write_random_model(folder / "random-mid-size", MID_SIZE)
    work = folder / "mid-size"
    work.mkdir()
    with (
        ServiceProcess(work, model=str(model), threads=threads(), chain="off") as service,
        _client(service) as client,
    ):
        terminal.paragraph(
            f"{MID_SIZE.layers} layers, hidden {MID_SIZE.hidden}, {PAGES} pages of {MID_EDGE} x {MID_EDGE} pixels. Its "
            "answers mean nothing and are not shown; its times are real."
        )
        terminal.line()
        _warm_up(client, service, MID_EDGE)
        ratios = _compare_all(terminal, service, client)
    terminal.line()
    terminal.paragraph(
        f"Pages seen before, behind another system prompt and in another order: the first token came "
        f"{ratios['c']:.1f} times sooner than by full prefill, after a restart {ratios['d']:.1f} times."
    )


def _compare_all(terminal: Terminal, service: ServiceProcess, client: httpx.Client) -> dict[str, float]:
    """A row for each step as soon as it is measured; returns how many times longer full prefill took."""
    layout = "   {:<56}{:<17}{:>7}{:>10}{:>11}{:>9}{:>9}{:>10}"
    head = layout.format("request", "images", "reused", "compiled", "refreshed", "TTFT", "full", "speed-up")
    terminal.line(terminal.style(head, "dim"))
    ratios: dict[str, float] = {}
    for step in steps():
        if step.restart:
            service.restart()
            _warm_up(client, service, MID_EDGE)
        body = request(step, service.url, MID_EDGE, MID_TOKENS)
        answer = ask(client, body)
        full = answer if step.policy == "full" else ask(client, under_full_prefill(body))
        ratios[step.name] = full.engine_ttft / answer.engine_ttft
        terminal.line(
            layout.format(
                f"{step.name}) {step.title}",
                _images(answer),
                answer.report["reused_tokens"],
                answer.report["compiled_tokens"],
                answer.report["refreshed_tokens"],
                f"{answer.engine_ttft:.2f} s",
                f"{full.engine_ttft:.2f} s",
                f"{ratios[step.name]:.1f}x",
            )
        )
    return ratios


def _client(service: ServiceProcess) -> httpx.Client:
    return httpx.Client(base_url=service.url, timeout=TIMEOUT, trust_env=False)


def _warm_up(client: httpx.Client, service: ServiceProcess, edge: int = 96) -> None:
    """One unrelated request that leaves nothing behind, so that no step pays for a library's first call."""
    urls = page_urls(draw_pages(np.random.default_rng(0), 1), service.url, edge)
    ask(client, under_full_prefill({"prompt": "What is A?", "images": urls, "max_tokens": 2}))


def _mark(terminal: Terminal, answer: Answer, step: Step) -> str:
    if answer.text.strip() == step.question.answer:
        return terminal.style("the same", "green")
    return terminal.style("NOT THE SAME", "red")


def _images(answer: Answer) -> str:
    if answer.report["policy"] == "full":
        return "not looked up"
    return ", ".join(f"{count} {name}" for name, count in answer.outcomes().items())


def _tokens(answer: Answer) -> str:
    report: dict[str, Any] = answer.report
    return (
        f"of {report['visual_tokens']} visual tokens {report['reused_tokens']} reused, "
        f"{report['compiled_tokens']} compiled, {report['refreshed_tokens']} refreshed for this question, "
        f"{report['chained_tokens']} from a chain"
    )


def _milliseconds(answer: Answer) -> str:
    return f"{answer.ttft * 1000:.0f} ms over HTTP, {answer.engine_ttft * 1000:.0f} ms in the engine"


if __name__ == "__main__":
    sys.exit(main())
