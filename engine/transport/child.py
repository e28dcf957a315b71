"""The worker process behind `engine.transport.process`."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from engine.errors import EngineError, InternalError
from engine.messages import Event, Failed
from engine.serving.build import Started, start_worker
from engine.transport.pictures import KeptPictures
from engine.transport.wire import (
    Abort,
    Call,
    CannotStart,
    Forget,
    FromWorker,
    Happened,
    Heartbeat,
    Launch,
    Ready,
    Reply,
    Stop,
    Submit,
    ToWorker,
)

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5


class Child:
    """Serves one parent until it says stop or goes away."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self._asked_to_stop = threading.Event()
        self._drain_seconds = 0.0
        self._calls = ThreadPoolExecutor(4, thread_name_prefix="admin")

    def run(self) -> int:
        launch = self._pipe.recv()
        assert isinstance(launch, Launch)
        try:
            started = start_worker(launch.model, launch.store, launch.limits, launch.shadow_share)
        except EngineError as error:
            self._send(CannotStart(error.message))
            return self._finish(2)
        self._send(Ready(started.info))
        threading.Thread(target=self._beat, args=(started,), name="heartbeat", daemon=True).start()
        # The pipe is served on while running requests drain; it ends with this process, or with the parent.
        threading.Thread(target=self._serve, args=(started,), name="receiver", daemon=True).start()
        self._asked_to_stop.wait()
        started.worker.stop(self._drain_seconds)
        try:
            started.store.entries.close()
        except Exception:  # nobody could do anything about it any more
            log.exception("the store could not be closed")
        return self._finish(0)

    def _serve(self, started: Started) -> None:
        """Handle messages as they come."""
        pictures = KeptPictures()
        try:
            while True:
                self._handle(started, pictures, self._pipe.recv())
        except (EOFError, OSError):
            pass  # the parent is gone: nobody is left to answer to
        except Exception:
            log.exception("what the parent sent could not be handled")  # which then starts another worker
        started.worker.hurry()
        self._asked_to_stop.set()

    def _handle(self, started: Started, pictures: KeptPictures, message: ToWorker) -> None:
        """One message; nobody holds it while waiting for the next: it may be all pixels."""
        match message:
            case Submit(request):
                started.worker.submit(pictures.unpacked(request), self._tell)
            case Forget(keys):
                pictures.forget(keys)
            case Abort(request_id):
                started.worker.abort(request_id)
            case Call():
                self._calls.submit(self._call, started, message)
            case Stop(drain_seconds):
                self._drain_seconds = drain_seconds
                self._asked_to_stop.set()
            case Launch():
                log.error("a second launch was asked of a running worker")

    def _tell(self, events: Sequence[Event]) -> None:
        if not self._send(Happened(tuple(events))):
            lost = {event.request_id for event in events}
            failed = [Failed(request, InternalError.code, "its events could not be sent") for request in lost]
            self._send(Happened(tuple(failed)))

    def _call(self, started: Started, call: Call) -> None:
        try:
            reply = Reply(call.number, started.desk.answer(call.method, call.arguments), None)
        except EngineError as error:
            reply = Reply(call.number, None, error)
        if not self._send(reply):
            self._send(Reply(call.number, None, InternalError("the answer could not be sent")))

    def _beat(self, started: Started) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            self._send(Heartbeat(started.worker.status()))

    def _send(self, message: FromWorker) -> bool:
        """Written by the thread that has something to say: a thread for it would have to wait for the interpreter's
        lock while the model computes. The parent always reads, so that nobody waits here for long. False for what
        cannot be sent, though something else may be."""
        try:
            with self._sending:
                self._pipe.send(message)
        except OSError:
            pass  # the parent is gone
        except Exception:
            log.exception("a message could not be sent")
            return False
        return True

    def _finish(self, code: int) -> int:
        self._stopped.set()
        self._calls.shutdown()
        return code


def serve_parent(descriptor: int) -> int:
    """Be the worker behind the pipe that this process inherited; returns the exit status."""
    # Ctrl-C and a service manager's signal reach the whole group; the parent decides when this process ends.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    return Child(Connection(descriptor)).run()
