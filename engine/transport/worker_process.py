"""One worker process as its parent sees it: the pipe, what is sent and heard, and whether it is well."""

from __future__ import annotations

import logging
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from engine.errors import EngineStopped, InternalError
from engine.messages import WORKER_DOWN, EngineInfo, EngineStatus, Event, Failed, GenerateRequest
from engine.transport.pictures import SentPictures
from engine.transport.wire import (
    Call,
    CannotStart,
    Forget,
    FromWorker,
    Happened,
    Heartbeat,
    Launch,
    Ready,
    Reply,
    Submit,
    ToWorker,
)

log = logging.getLogger(__name__)

# A killed process that waits for a device ends when the device answers.
KILL_SECONDS = 10.0


class WorkerProcess:
    """Starts with its making. Events go to `tell` and replies to `replied`, on a thread of its own."""

    def __init__(
        self,
        command: Sequence[str],
        launch: Launch,
        picture_bytes: int,
        tell: Callable[[Sequence[Event]], None],
        replied: Callable[[Reply], None],
    ) -> None:
        self._pipe, self.process = _start(command)
        self._tell, self._replied = tell, replied
        self._outbox: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._pictures = SentPictures(picture_bytes)
        self.heard = time.monotonic()
        self.status: EngineStatus | None = None
        self.started: Future[EngineInfo] = Future()
        self._threads: list[threading.Thread] = []
        self.send(launch)
        try:
            for run in (self._send, self._receive):
                thread = threading.Thread(target=run, daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.kill()
            raise

    def send(self, message: ToWorker) -> None:
        """Queue a message; a thread pickles and writes it, so that a large image never blocks the event loop."""
        self._outbox.put(message)

    def ailment(self, stall_after: float) -> str | None:
        """Why this worker, which has loaded its model, must be replaced; None while it is well."""
        if self.process.poll() is not None:
            return f"the worker ended with status {self.process.returncode}"
        if self.status is None:
            return "the worker never came up" if self.silent > stall_after else None
        if WORKER_DOWN in self.status.reasons:
            return WORKER_DOWN
        busy = self.status.running > 0 or self.status.waiting > 0
        quiet = self.silent + (self.status.progress_seconds if busy else 0.0)
        return "the worker is stalled" if quiet > stall_after else None

    @property
    def silent(self) -> float:
        """Seconds since anything came from it."""
        return time.monotonic() - self.heard

    def kill(self) -> None:
        self.process.kill()
        try:
            self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            log.error("the worker does not end; it may wait for a device")
        self._outbox.put(None)
        # With the pipe both threads end; closed under them, its number could be reused.
        _hang_up(self._pipe)
        for thread in self._threads:
            thread.join()
        self._pipe.close()

    def _send(self) -> None:
        while self._write(self._outbox.get()):
            pass

    def _write(self, message: ToWorker | None) -> bool:
        """Send one message; False at the end. Nobody holds it while waiting for the next: it may be all pixels."""
        if message is None:
            return False
        try:
            if isinstance(message, Submit):
                self._submit(message.request)
            else:
                self._pipe.send(message)
        except OSError:
            return False  # the supervisor sees the same end
        except Exception:
            log.exception("a message to the worker could not be sent")
            self._lost(message)
        return True

    def _lost(self, message: ToWorker) -> None:
        """Whoever waits for an answer to a message that was not sent gets one."""
        if isinstance(message, Submit):
            self._tell([Failed(message.request.id, InternalError.code, "the request could not be sent")])
        elif isinstance(message, Call):
            self._replied(Reply(message.number, None, InternalError("the call could not be sent")))

    def _submit(self, request: GenerateRequest) -> None:
        self._pipe.send(Submit(self._pictures.packed(request)))
        if surplus := self._pictures.sent(request):
            self._pipe.send(Forget(surplus))

    def _receive(self) -> None:
        try:
            while True:
                self._hear(self._pipe.recv())
        except (EOFError, OSError):
            return  # the supervisor sees the same end
        except Exception:
            log.exception("what the worker sent could not be read")
            self.process.kill()

    def _hear(self, message: FromWorker) -> None:
        self.heard = time.monotonic()
        match message:
            case Ready(info):
                self.started.set_result(info)
            case CannotStart(text):
                self.started.set_exception(EngineStopped(text))
            case Heartbeat(status):
                self.status = status
            case Happened(events):
                self._tell(events)
            case Reply():
                self._replied(message)


# Two ends of a pipe, and two of the one by which `subprocess` hears whether the program could be run.
DESCRIPTORS_TO_START = 4


def _start(command: Sequence[str]) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Our end of the pipe and the process, which finds its end's number behind the command."""
    ours, theirs = Pipe()
    try:
        process = subprocess.Popen([*command, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours, process


def _hang_up(pipe: Connection) -> None:
    """End the pipe for those who wait at it, even where a child of the worker still holds the other end."""
    end = socket.socket(fileno=pipe.fileno())
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.detach()
