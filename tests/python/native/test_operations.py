#!/usr/bin/python3
"""Operations of the native backend and the threads that complete them, in one process: over a stand-in for the
library, whose requests end when the test says so."""

import ctypes
import datetime
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import suite  # noqa: E402

sys.path.insert(0, str(suite.TREE / "worker" / "python"))
LIMIT_S = 60  # a backstop, never reached when all is well
LOST = -5  # SHOAL_ELOST


def make_stand_in(folder):
    """The stand-in as a library in this folder. None: there is no compiler."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        return None
    path = folder / "libshoal-stand-in.so"
    command = [*compiler, "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", f"-I{suite.TREE}"]
    subprocess.run([*command, "-o", path, HERE / "library_stand_in.c"], check=True)
    return path


class Operations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["SHOAL_LIBRARY"] = str(suite.BUILD / "lib" / "libshoal.so")
        os.environ["SHOAL_NATIVE"] = "1"
        import shoal.torch  # noqa: F401
        from shoal.torch import _native

        try:
            cls.module, _ = _native.load()
        except ImportError as reason:
            raise unittest.SkipTest(str(reason)) from None
        cls.folder = tempfile.TemporaryDirectory(prefix="shoal-test-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = make_stand_in(pathlib.Path(cls.folder.name))
        if cls.path is None:
            raise unittest.SkipTest("no C compiler")
        cls.library = ctypes.CDLL(str(cls.path))
        for name in ("stand_in_make", "stand_in_last"):
            getattr(cls.library, name).restype = ctypes.c_void_p

    def setUp(self):
        self.stand_in = ctypes.c_void_p(self.library.stand_in_make())
        self.session = self.module.Session(str(self.path))
        timeout = datetime.timedelta(seconds=LIMIT_S)
        self.group = self.module.Group(self.session, self.stand_in.value, 0, 1, "default", "0", timeout)

    def tearDown(self):
        self.session.close("the test is over")
        self.session.release()

    def start(self):
        """(Work, request)"""
        import torch

        work = self.group.all_reduce([torch.ones(3)])
        return work, self.last()

    def last(self):
        """The request that was made last."""
        return ctypes.c_void_p(self.library.stand_in_last(self.stand_in))

    def wait_in_thread(self, work, timeout_s=LIMIT_S):
        """A thread that waits for it; what it ends with goes to self.ends."""
        self.ends = []

        def wait():
            try:
                self.ends.append(work.wait(datetime.timedelta(seconds=timeout_s)))
            except Exception as error:
                self.ends.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def end_of(self, thread):
        thread.join(LIMIT_S)
        self.assertEqual(len(self.ends), 1, "it still waits")
        return self.ends[0]

    def value_of(self, future):
        """In a thread, for it may never come."""
        came = threading.Event()
        future.add_done_callback(lambda _: came.set())
        self.assertTrue(came.wait(LIMIT_S), "the future is not complete")
        return future.value()

    def test_the_library_is_asked_only_for_a_future(self):
        work, request = self.start()
        thread = self.wait_in_thread(work)
        self.assertTrue(self.library.stand_in_until_waiting(request))
        self.library.stand_in_complete(request, 0)
        self.assertIs(self.end_of(thread), True)
        self.assertEqual(self.library.stand_in_asked(request), 0)

    def test_a_future_that_nobody_waits_for(self):
        """The library's callback completes it, frees the request, and no other thread is woken for it."""
        work, request = self.start()
        future = work.get_future()
        self.assertEqual(self.library.stand_in_asked(request), 1)
        self.library.stand_in_complete(request, 0)
        self.assertEqual(self.value_of(future)[0].tolist(), [1, 1, 1])
        self.assertTrue(self.library.stand_in_freed(request))
        self.assertTrue(work.is_success())

    def test_a_failure_that_the_callback_finds(self):
        from shoal import errors

        work, request = self.start()
        future = work.get_future()
        self.library.stand_in_complete(request, LOST)
        with self.assertRaisesRegex(errors.RankLostError, "rank lost: said by the stand-in"):
            work.wait()
        with self.assertRaisesRegex(RuntimeError, "rank lost"):
            future.wait()
        self.assertIn("rank lost", str(self.group.failure()))

    def test_a_future_asked_for_while_another_thread_waits(self):
        """That one has the request, so it asks the library, when its time is up."""
        from shoal import errors

        work, request = self.start()
        thread = self.wait_in_thread(work, 0.4)
        self.assertTrue(self.library.stand_in_until_waiting(request))
        future = work.get_future()
        self.assertEqual(self.library.stand_in_asked(request), 0)
        self.library.stand_in_time_up(request)
        while not self.ends and self.library.stand_in_asked(request) == 0:
            thread.join(0.01)
        self.assertIsInstance(self.end_of(thread), errors.TimeoutError)
        self.assertEqual(self.library.stand_in_asked(request), 1)
        self.library.stand_in_complete(request, 0)
        self.value_of(future)

    def test_waits_that_do_not_hold_up_other_threads(self):
        for name in ("result", "synchronize", "wait"):
            work, request = self.start()
            ends = []
            thread = threading.Thread(target=lambda: ends.append(getattr(work, name)()), daemon=True)
            thread.start()
            self.assertTrue(self.library.stand_in_until_waiting(request), name)
            self.library.stand_in_complete(request, 0)
            thread.join(LIMIT_S)
            self.assertEqual(len(ends), 1, name)

    def test_complete_while_another_thread_waits(self):
        work, request = self.start()
        future = work.get_future()
        thread = self.wait_in_thread(work)
        self.assertTrue(self.library.stand_in_until_waiting(request))
        self.library.stand_in_complete(request, 0)
        self.assertIs(self.end_of(thread), True)
        self.value_of(future)

    def test_the_end_of_the_job_while_a_thread_waits(self):
        """The waiter gives the request back, and hears of the end, however often it looks."""
        from shoal import errors

        work, request = self.start()
        thread = self.wait_in_thread(work)
        self.assertTrue(self.library.stand_in_until_waiting(request))
        self.session.close("the test is over")
        self.assertIsInstance(self.end_of(thread), errors.StateError)

    def assert_waits_for_futures(self, call):
        """The call returns when what hangs on an operation's future has ended."""
        work, request = self.start()
        begun, may_end, ended = threading.Event(), threading.Event(), []

        def hang(_):
            begun.set()
            may_end.wait(LIMIT_S)
            ended.append(True)

        work.get_future().then(hang)
        self.library.stand_in_complete(request, 0)
        self.assertTrue(begun.wait(LIMIT_S))
        threading.Timer(0.2, may_end.set).start()
        call()
        self.assertEqual(ended, [True])

    def test_the_end_of_the_job_while_a_thread_starts_a_collective(self):
        """Its request goes with the job, so nobody may wait for it any more."""
        from shoal import errors

        order, works = [], []
        self.library.stand_in_hold(self.stand_in, True)

        def start():
            works.append(self.start()[0])
            order.append("started")

        def close():
            self.session.close("the test is over")
            order.append("closed")

        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        self.assertTrue(self.library.stand_in_until_starting(self.stand_in))
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        while self.group.all_reduce([]) is not None:  # until it is closing
            closing.join(0.01)
        self.library.stand_in_hold(self.stand_in, False)
        starting.join(LIMIT_S)
        closing.join(LIMIT_S)
        self.assertEqual(sorted(order), ["closed", "started"])
        with self.assertRaisesRegex(errors.StateError, "the test is over"):
            works[0].wait(datetime.timedelta(seconds=LIMIT_S))

    def test_the_end_of_the_job_waits_for_what_hangs_on_futures(self):
        self.assert_waits_for_futures(lambda: self.session.close("the test is over"))

    def test_the_end_of_the_job_by_what_hangs_on_a_future(self):
        work, request = self.start()
        ended = threading.Event()

        def end(_):
            self.session.close("by a callback")
            ended.set()

        work.get_future().then(end)
        self.library.stand_in_complete(request, 0)
        self.assertTrue(ended.wait(LIMIT_S))

    def test_callbacks_that_wait_for_each_other(self):
        """Each has a thread while the others wait."""
        first, second = self.start(), self.start()
        began = threading.Event()
        ends = [
            first[0].get_future().then(lambda _: began.wait(LIMIT_S)),
            second[0].get_future().then(lambda _: began.set()),
        ]
        for _, request in (first, second):
            self.library.stand_in_complete(request, 0)
        self.assertEqual([self.value_of(end) for end in ends], [True, None])

    def test_going_on_waits_for_what_is_under_way(self):
        """Nobody has the Work any more; and who waits for another one moves on first."""
        work, request = self.start()
        del work
        thread = threading.Thread(target=self.session.settle, args=(float(LIMIT_S), "gone on"), daemon=True)
        thread.start()
        self.assertTrue(self.library.stand_in_until_waiting(request))
        self.assertTrue(thread.is_alive())
        self.library.stand_in_complete(request, 0)
        thread.join(LIMIT_S)
        self.assertFalse(thread.is_alive())
        self.assertIsNone(self.group.failure())

    def test_going_on_fails_what_does_not_end_in_time(self):
        """Its memory stays the library's until it is complete after all."""
        from shoal import errors

        work, request = self.start()
        self.session.settle(0.05, "the job has gone on")
        with self.assertRaisesRegex(errors.StateError, "the job has gone on"):
            work.wait()
        self.assertIn("the job has gone on", str(self.group.failure()))
        self.assertFalse(self.library.stand_in_freed(request))
        self.library.stand_in_complete(request, 0)
        self.assertTrue(self.library.stand_in_freed(request))
        self.session.settle(float(LIMIT_S), "nothing is left")

    def test_going_on_waits_for_what_hangs_on_futures(self):
        self.assert_waits_for_futures(lambda: self.session.settle(float(LIMIT_S), "gone on"))

    def start_two(self):
        """(Work, its requests) of one call for two tensors."""
        import torch

        requests = []
        works = []
        for _ in range(2):
            works.append(self.group.all_reduce([torch.ones(3)]))
            requests.append(self.last())
        return self.module.join(works), requests

    def test_one_work_for_several_operations(self):
        work, (first, second) = self.start_two()
        future = work.get_future()
        self.library.stand_in_complete(second, 0)
        self.assertFalse(future.done() or work.is_completed() or work.is_success())
        self.library.stand_in_complete(first, 0)
        self.assertEqual([tensor.tolist() for tensor in self.value_of(future)], [[1, 1, 1]] * 2)
        self.assertTrue(work.is_completed() and work.is_success() and work.wait())

    def test_one_of_several_operations_fails(self):
        from shoal import errors

        work, (first, second) = self.start_two()
        future = work.get_future()
        self.library.stand_in_complete(second, LOST)
        self.assertFalse(future.done())
        self.library.stand_in_complete(first, 0)
        with self.assertRaisesRegex(errors.RankLostError, "said by the stand-in"):
            work.wait()
        with self.assertRaisesRegex(RuntimeError, "rank lost"):
            future.wait()
        self.assertFalse(work.is_success())

    def test_the_time_for_several_operations_is_one(self):
        from shoal import errors

        work, (first, second) = self.start_two()
        self.library.stand_in_complete(first, 0)
        thread = self.wait_in_thread(work, 0.2)
        self.assertIsInstance(self.end_of(thread), errors.TimeoutError)
        self.library.stand_in_complete(second, 0)
        self.assertTrue(work.wait())

    def test_the_time_that_a_failed_wait_names_is_that_of_all(self):
        """Not what was left of it for the second."""
        work, (first, _) = self.start_two()
        thread = self.wait_in_thread(work, 0.5)
        self.assertTrue(self.library.stand_in_until_waiting(first))
        thread.join(0.01)  # some of it has passed
        self.library.stand_in_complete(first, 0)
        self.assertIn("within wait's timeout of 0.5 s", str(self.end_of(thread)))

    def test_the_time_of_one_that_is_complete_and_that_nobody_has_waited_for(self):
        """It is over, and the group goes on."""
        import torch

        group = self.module.Group(
            self.session, self.stand_in.value, 0, 1, "short", "0", datetime.timedelta(0)
        )
        work = group.all_reduce([torch.ones(3)])  # its time is over at once
        self.library.stand_in_complete(self.last(), 0)
        group.set_timeout(datetime.timedelta(seconds=LIMIT_S))
        second = group.all_reduce([torch.ones(3)])  # kept, so that no thread looks at it
        self.library.stand_in_complete(self.last(), 0)
        self.assertIsNone(group.failure())
        self.assertTrue(work.is_success() and second.wait())

    def test_a_call_of_which_only_a_part_could_be_started(self):
        """The rest of it is waited for by other ranks: the group has failed, and the part goes on alone."""
        import torch

        from shoal import errors

        self.library.stand_in_refuse_after(self.stand_in, 1)
        with self.assertRaisesRegex(errors.ShoalError, "said by the stand-in"):
            self.group.all_reduce([torch.ones(3), torch.ones(4)])
        self.assertIsNotNone(self.group.failure())
        self.assertIsNone(self.group.all_reduce([torch.ones(3)]))
        request = self.last()
        self.library.stand_in_complete(request, 0)
        self.assertTrue(self.library.stand_in_freed(request))

    def test_a_call_that_was_refused_as_a_whole_harms_nobody(self):
        import torch

        from shoal import errors

        self.library.stand_in_refuse_after(self.stand_in, 0)
        with self.assertRaises(errors.ShoalError):
            self.group.all_reduce([torch.ones(3), torch.ones(4)])
        self.assertIsNone(self.group.failure())

    def test_a_forked_child_lets_go_of_a_session_whose_thread_sleeps(self):
        work, request = self.start()
        future = work.get_future()
        self.library.stand_in_complete(request, 0)
        self.value_of(future)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            del work, future, self.group, self.session
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


if __name__ == "__main__":
    sys.exit(suite.main())
