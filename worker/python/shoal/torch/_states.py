"""The states of an operation (_work.py), and which may follow which.

    MAKING ---+--> RUNNING ---+-- its requests are complete -----------------> OVER
              |               |                                                 ^
              +--> STREAMED --+-- its time runs out, or nobody completes it --> FAILED
                                                 its requests are complete after all, or the job's to free

MAKING    Requests are being made. There is no Work yet.
RUNNING   Requests are under way. The Work is complete when they are, and what follows them is done.
STREAMED  Requests are under way, on a device. The Work is complete: who waits has its stream wait.
FAILED    Who waits has the error. Requests may go on, and their memory is kept for them.
OVER      No request is under way, or the job frees those that are. Whether it went well is the
          operation's `error`.

To leave RUNNING or STREAMED is to publish how the operation went, which the thread does that moves it.
"""

import enum
import threading


class State(enum.IntEnum):  # whose hash costs little: operations are many
    MAKING = 0
    RUNNING = 1
    STREAMED = 2
    FAILED = 3
    OVER = 4


# A member that is looked up in the class costs several times as much.
MAKING, RUNNING, STREAMED, FAILED, OVER = State

NEXT = {
    MAKING: {RUNNING, STREAMED},
    RUNNING: {FAILED, OVER},
    STREAMED: {FAILED, OVER},
    FAILED: {OVER},
    OVER: set(),
}
PUBLISHED = frozenset((FAILED, OVER))


class States:
    """Where one operation is. Any thread may ask and move it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._now = MAKING

    @property
    def now(self):
        with self._lock:
            return self._now

    def move(self, state):
        """True: how the operation went has not been published, and is the caller's to publish. That is
        so once. RuntimeError, and no move, when `state` may not follow."""
        with self._lock:
            before = self._now
            if state not in NEXT[before]:
                raise RuntimeError(f"an operation that is {before.name} cannot become {state.name}")
            self._now = state
            return state in PUBLISHED and before not in PUBLISHED

    @property
    def published(self):
        return self.now in PUBLISHED
