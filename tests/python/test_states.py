#!/usr/bin/python3
"""The states of an operation: which may follow which, that how it went is published once, and what an
operation does on its way through them, with requests that end when the test says so."""

import contextlib
import itertools
import sys
import threading
import time
import types
import unittest

import suite

sys.path.insert(0, str(suite.TREE / "worker" / "python"))


def load():
    from shoal.torch import _states, _streams, _work

    return _states, _streams, _work


WAYS = {
    "MAKING": [],
    "RUNNING": ["RUNNING"],
    "STREAMED": ["STREAMED"],
    "FAILED": ["RUNNING", "FAILED"],
    "OVER": ["RUNNING", "OVER"],
}
ARROWS = {
    ("MAKING", "RUNNING"),
    ("MAKING", "STREAMED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "OVER"),
    ("STREAMED", "FAILED"),
    ("STREAMED", "OVER"),
    ("FAILED", "OVER"),
}


class Transitions(unittest.TestCase):
    def setUp(self):
        self.module, _, _ = load()

    def states(self, name):
        states = self.module.States()
        for step in WAYS[name]:
            states.move(self.module.State[step])
        return states

    def test_only_the_arrows_of_the_picture_are_moves(self):
        for before, after in itertools.product(WAYS, WAYS):
            states = self.states(before)
            with self.subTest(f"{before} to {after}"):
                if (before, after) in ARROWS:
                    states.move(self.module.State[after])
                    self.assertIs(states.now, self.module.State[after])
                else:
                    with self.assertRaises(RuntimeError):
                        states.move(self.module.State[after])
                    self.assertIs(states.now, self.module.State[before])

    def test_every_way_to_the_end_publishes_once(self):
        for start in ("RUNNING", "STREAMED"):
            for way in (["OVER"], ["FAILED"], ["FAILED", "OVER"]):
                states = self.states(start)
                told = [states.move(self.module.State[step]) for step in way]
                self.assertEqual(told, [True] + [False] * (len(way) - 1), f"{start} {way}")
                self.assertTrue(states.published)

    def test_of_threads_that_fail_and_finish_it_one_publishes(self):
        for _ in range(200):
            states, told, gate = self.states("RUNNING"), [], threading.Barrier(2)

            def move(name, states=states, told=told, gate=gate):
                gate.wait()
                with contextlib.suppress(RuntimeError):
                    told.append(states.move(self.module.State[name]))

            threads = [threading.Thread(target=move, args=(name,)) for name in ("FAILED", "OVER")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(told.count(True), 1)
            self.assertTrue(states.published)


class Request:
    """One of the library's: under way until it ends, well or with an error."""

    def __init__(self):
        self.ended, self.error = False, None
        self.waits_for = "its chunks"

    def end(self, error=None):
        self.ended, self.error = True, error

    def test(self):
        if self.error:
            raise self.error
        return self.ended

    def wait(self, timeout_ms):
        return self.test()

    def wait_stream(self, stream):
        pass


class Pending:
    """The thread that completes operations, as far as making a Work needs it."""

    def add(self, operation):
        self.operation = operation


class Streams:
    """Streams of a device that has none: what comes onto them is done at once."""

    def __init__(self, torch):
        self.torch = torch

    def handle(self, stream):
        return stream

    def using(self, stream):
        return contextlib.nullcontext()

    def event(self, stream):
        return stream

    def record(self, tensor, stream):
        pass

    def join(self, device, event):
        pass

    def future(self, device):
        return self.torch.futures.Future()

    def complete(self, future, stream, value):
        future.set_result(value)


class Way(unittest.TestCase):
    def setUp(self):
        from shoal import errors

        self.errors = errors
        self.module, self.streams, self.work = load()
        self.failures, self.finished = [], []

    def make(self, requests, by_stream=False, timeout_s=100):
        session = types.SimpleNamespace(check_process=lambda: None)
        operation = self.work.Operation("all_reduce", timeout_s, session, None)
        if by_stream:
            import torch

            own, self.streams.runtime = self.streams.runtime, Streams(torch)
            self.addCleanup(setattr, self.streams, "runtime", own)
            operation.device = operation.stream = 0
        for request in requests:
            operation.add(request, "memory")
        operation.finishers.append(lambda: self.finished.append(operation.states.now))
        self.assertIs(operation.states.now, self.module.State.MAKING)
        operation.make_work(Pending(), self.failures.append)
        return operation

    def is_in(self, operation, name):
        self.assertIs(operation.states.now, self.module.State[name])

    def test_it_runs_until_its_requests_are_complete(self):
        requests = [Request(), Request()]
        operation = self.make(requests)
        self.is_in(operation, "RUNNING")
        requests[0].end()
        self.assertFalse(operation.advance())
        self.is_in(operation, "RUNNING")
        self.assertTrue(operation.unfinished())
        requests[1].end()
        self.assertTrue(operation.advance())
        self.is_in(operation, "OVER")
        self.assertEqual(self.finished, [self.module.State.RUNNING])
        self.assertEqual((operation.kept, self.failures), ([], []))
        self.assertTrue(operation.wait(None))

    def test_a_request_that_fails_is_its_error_when_all_are_complete(self):
        requests = [Request(), Request()]
        operation = self.make(requests)
        requests[0].end(self.errors.DisconnectedError("gone"))
        self.assertFalse(operation.advance())
        self.is_in(operation, "RUNNING")
        requests[1].end()
        self.assertTrue(operation.advance())
        self.is_in(operation, "OVER")
        self.assertEqual([len(self.failures), self.finished], [1, []])
        with self.assertRaises(self.errors.DisconnectedError):
            operation.wait(None)

    def test_going_on_waits_for_the_thread_that_tells_of_its_end(self):
        """The operation is over before its Work is complete: another thread is between the two."""
        request, completions = Request(), self.work.Completions(None)
        begins_to_tell, may_tell = threading.Event(), threading.Event()
        self.addCleanup(completions.close)
        operation = self.make([request])
        completions.pending[id(operation)] = operation
        tell = operation._tell
        operation._tell = lambda: (begins_to_tell.set(), may_tell.wait(), tell())

        class Published(threading.Event):
            def wait(self, timeout=None):
                may_tell.set()
                return super().wait(timeout)

        operation.published = Published()
        request.end()
        thread = threading.Thread(target=operation.advance)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(may_tell.set)
        begins_to_tell.wait()
        completions.settle(time.monotonic() + 60, self.errors.StateError("gone on"))
        self.assertTrue(operation.published.is_set() and operation.work.is_completed())

    def test_its_time_runs_out_and_its_memory_is_kept_until_it_is_over(self):
        request = Request()
        operation = self.make([request], timeout_s=0)
        with self.assertRaisesRegex(self.errors.TimeoutError, "its timeout of 0 s: its chunks$"):
            operation.wait(None)
        self.is_in(operation, "FAILED")
        operation.expire()
        self.assertEqual((len(self.failures), operation.kept), (1, ["memory"]))
        self.assertFalse(operation.advance())
        request.end()
        self.assertTrue(operation.advance())
        self.is_in(operation, "OVER")
        self.assertEqual((len(self.failures), operation.kept, self.finished), (1, [], []))

    def test_one_that_is_complete_when_its_time_runs_out(self):
        request = Request()
        operation = self.make([request], timeout_s=0)
        request.end()
        operation.expire()
        self.is_in(operation, "OVER")
        self.assertEqual((self.failures, operation.error), ([], None))

    def test_the_job_frees_the_requests_of_one_that_runs_or_has_failed(self):
        for first in ((), ("expire",)):
            operation = self.make([Request()])
            for call in first:
                getattr(operation, call)()
            operation.fail(self.errors.StateError("closed"), forget=True)
            self.is_in(operation, "OVER")
            self.assertEqual((list(operation.requests), operation.kept), ([], ["memory"]))
            self.assertTrue(operation.advance())
        self.assertEqual(len(self.failures), 2)

    def test_what_is_over_does_not_fail(self):
        operation = self.make([])
        self.assertTrue(operation.advance())
        operation.fail(self.errors.StateError("closed"))
        self.is_in(operation, "OVER")
        self.assertIsNone(operation.error)

    def test_on_a_device_its_work_is_complete_while_requests_go_on(self):
        request = Request()
        operation = self.make([request], by_stream=True)
        self.is_in(operation, "STREAMED")
        self.assertTrue(operation.published.is_set())
        self.assertEqual(len(self.finished), 1)
        self.assertTrue(operation.unfinished() and operation.wait(None))
        request.end()
        self.assertTrue(operation.advance())
        self.is_in(operation, "OVER")
        self.assertEqual((len(self.finished), operation.unfinished()), (1, False))

    def test_on_a_device_a_failure_is_published_after_the_work_is_complete(self):
        request = Request()
        operation = self.make([request], by_stream=True)
        operation.expire()
        self.is_in(operation, "FAILED")
        self.assertEqual(len(self.failures), 1)
        with self.assertRaises(self.errors.TimeoutError):
            operation.wait_on_host()
        request.end()
        self.assertTrue(operation.advance())
        self.is_in(operation, "OVER")
        self.assertEqual(len(self.failures), 1)


if __name__ == "__main__":
    sys.exit(suite.main())
