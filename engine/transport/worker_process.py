"""One worker process as its parent sees it: the pipe, what is sent and heard, and whether it is well."""

from __future__ import annotations

import logging
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from engine.errors import EngineStopped, InternalError
from engine.messages import WORKER_DOWN, EngineInfo, EngineStatus, Event, Failed, GenerateRequest
from engine.transport.pictures import SentPictures
from engine.transport.wire import (
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
        ours, theirs = Pipe()
        self._pipe: Connection = ours
        self.process = subprocess.Popen([*command, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        self._tell, self._replied = tell, replied
        self._outbox: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._pictures = SentPictures(picture_bytes)
        self.heard = time.monotonic()
        self.status: EngineStatus | None = None
        self.started: Future[EngineInfo] = Future()
        self.send(launch)
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def send(self, message: ToWorker) -> None:
        """Queue a message; a thread pickles and writes it, so that a large image never blocks the event loop."""
        self._outbox.put(message)

    def ailment(self, stall_after: float) -> str | None:
        """Why this worker must be replaced, None while it is well."""
        if self.process.poll() is not None:
            return f"the worker ended with status {self.process.returncode}"
        if not self.started.done():
            return None  # still loading
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
        self.process.wait()
        self._outbox.put(None)
        # The pipe ends with the process, and with it both threads; closed under them, its number could be reused.
        for thread in self._threads:
            thread.join()
        self._pipe.close()
        if not self.started.done():
            self.started.set_exception(EngineStopped("the worker ended while it was starting"))

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
            if isinstance(message, Submit):
                lost = Failed(message.request.id, InternalError.code, "the request could not be sent")
                self._tell([lost])
        return True

    def _submit(self, request: GenerateRequest) -> None:
        self._pipe.send(Submit(self._pictures.packed(request)))
        if surplus := self._pictures.sent(request):
            self._pipe.send(Forget(surplus))

    def _receive(self) -> None:
        while True:
            try:
                message: FromWorker = self._pipe.recv()
            except (EOFError, OSError):
                return
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
