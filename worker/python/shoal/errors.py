"""Exceptions: one class for each error code of shoal.h, with the library's own text."""

import copy


class ShoalError(RuntimeError):
    """A call of the library failed. `code` is the library's (shoal.h); str() says who is to blame."""

    code = 0


class RecoverableError(ShoalError):
    """When a job has failed with one of these, its ranks can go on as its next generation
    (library.Job.reconfigure); not when a process could not join. A wait that has timed out is none: its job
    lives, and so may the rank that is waited for."""


class InvalidError(ShoalError, ValueError):
    code = -1


class OutOfMemoryError(ShoalError, MemoryError):
    code = -2


class TimeoutError(ShoalError, TimeoutError):  # noqa: A001 - also Python's own
    code = -3


class DisconnectedError(ShoalError, ConnectionError):
    code = -4


class RankLostError(RecoverableError, ConnectionError):
    code = -5


class MismatchError(ShoalError):
    code = -6


class ProtocolError(ShoalError):
    code = -7


class RefusedError(RecoverableError):
    code = -8


class SystemCallError(ShoalError):
    code = -9


class StateError(ShoalError):
    code = -10


class UnsupportedError(ShoalError, NotImplementedError):
    code = -11


_CLASSES = {error.code: error for error in ShoalError.__subclasses__() + RecoverableError.__subclasses__()}
del _CLASSES[ShoalError.code]


def without_frames(error):
    """Return a copy of an error that is kept: one that is raised keeps the frames it went through, with all that is in
    them."""
    try:
        return copy.copy(error)
    except TypeError:  # its class takes other arguments than it has told its base
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return error


def make_error(code, text):
    """The exception for a code of the library."""
    error = _CLASSES.get(code, ShoalError)(text)
    error.code = code
    return error
