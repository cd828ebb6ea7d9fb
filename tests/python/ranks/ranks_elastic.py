"""Process groups that go on after a loss, or without one, and newcomers: shoal.torch.reconfigure and join. One
process has the cases, and forks the ranks, which do what it tells them. Under shoalrun, for a daemon.

The cases are those of torch's own tests of fault tolerance (mid 2026): basic, all-reduce, send and receive, shrinks of
the last and of a middle rank, down and up, one to all, identity, a late joiner, merge and split, after an abort, a
configuration that is over."""

import contextlib
import datetime
import faulthandler
import itertools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback

import shoal.torch
import torch
import torch._dynamo  # noqa: F401 (which DistributedDataParallel would load, in each fork anew)
import torch.distributed as dist

LIMIT_S = 60
LATE_S = 15  # when a rank says what it is at
TIMEOUT = datetime.timedelta(seconds=LIMIT_S)
STRAGGLERS = datetime.timedelta(seconds=20)
_numbers = itertools.count()
_puppets = []


class Said(Exception):
    """An error that a rank's call has raised: its class, its text, whether the rank can go on."""

    def __init__(self, kind, text, recoverable):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text, self.recoverable = kind, text, recoverable


class Actions:
    """The actions that a rank does when it is told to."""

    options = {}  # of shoal.torch.Options, but the job

    def init(self, store, rank, size, job):
        more = {"pg_options": shoal.torch.Options(job=job, **self.options)} if job or self.options else {}
        dist.init_process_group(
            "shoal", init_method=f"file://{store}", rank=rank, world_size=size, timeout=TIMEOUT, **more
        )

    def join(self, job, timeout=TIMEOUT):
        shoal.torch.join(job, timeout)

    def reconfigure(self, **options):
        self.before = dist.GroupMember.WORLD
        shoal.torch.reconfigure(**{"stragglers": STRAGGLERS, **options})

    def go_on(self):
        """Until all that there are take part."""
        while True:
            self.reconfigure()
            try:
                return self.sum()
            except Exception as error:
                if not shoal.torch.is_recoverable(error):
                    raise

    def place(self):
        return dist.get_rank(), dist.get_world_size()

    def generation(self):
        return shoal.torch.generation()

    def sum(self, group=None):
        tensor = torch.full((4,), dist.get_rank() + 1.0)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [tensor[0]] * 4
        return tensor[0].item()

    def go_on_with_many_under_way(self):
        """Without a loss, and nobody waits for what he has started."""
        tensors = [torch.full((1 << 16,), dist.get_rank() + 1.0) for _ in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        futures = [works.pop().get_future() for _ in range(5)]
        del works[:5]
        self.reconfigure()
        assert all(work.is_completed() and work.is_success() for work in works)
        assert all(future.done() for future in futures)
        return [tensor[0].item() for tensor in tensors]

    def sum_of_before(self):
        self.before.allreduce([torch.ones(4)]).wait()

    def ring(self):
        rank, size = dist.get_rank(), dist.get_world_size()
        received = torch.zeros(4)
        work = dist.irecv(received, (rank - 1) % size)
        dist.send(torch.full((4,), rank + 1.0), (rank + 1) % size)
        work.wait()
        return received[0].item()

    def broadcast(self):
        tensor = torch.full((4,), 42.0 if dist.get_rank() == 0 else 0.0)
        dist.broadcast(tensor, 0)
        return tensor[0].item()

    def pair(self):
        """A group of the first two."""
        group = dist.new_group([0, 1], timeout=TIMEOUT)
        return self.sum(group) if dist.get_rank() < 2 else None

    def wrap(self, ours):
        torch.manual_seed(dist.get_rank())
        self.module = torch.nn.Linear(3, 2)
        self.rewrap(ours)

    def rewrap(self, ours):
        kind = shoal.torch.DistributedDataParallel if ours else torch.nn.parallel.DistributedDataParallel
        self.wrapper = kind(self.module)

    def step(self):
        """The gradient's average of as many inputs as this rank's number, from 1."""
        self.module.zero_grad()
        self.wrapper(torch.ones(dist.get_rank() + 1, 3)).sum().backward()
        return self.module.weight.grad[0, 0].item()

    def wrong_size(self):
        dist.all_reduce(torch.ones(3 + dist.get_rank()))

    def leave(self):
        dist.destroy_process_group()

    def end(self):
        if dist.is_initialized():
            dist.destroy_process_group()


class Puppet:
    """A rank, a fork of this process."""

    def __init__(self):
        self.pipe, its = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for other in [self, *_puppets]:
                other.pipe.close()
            _serve(its)
        its.close()
        _puppets.append(self)

    def tell(self, action, *values, **named):
        self.pipe.send((action, values, named))

    def answer(self):
        if not self.pipe.poll(LIMIT_S):
            raise AssertionError(f"rank of process {self.pid} does not answer")
        error, value = self.pipe.recv()
        if error:
            raise Said(*error)
        return value

    def call(self, action, *values, **named):
        self.tell(action, *values, **named)
        return self.answer()

    def kill(self):
        _puppets.remove(self)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pipe.close()


def _serve(pipe):
    """In the fork, until the other end is closed."""
    torch.set_num_threads(1)
    actions = Actions()
    while True:
        try:
            action, values, named = pipe.recv()
        except EOFError:
            os._exit(0)
        faulthandler.dump_traceback_later(LATE_S)
        try:
            said = None, getattr(actions, action)(*values, **named)
        except Exception as error:
            said = (type(error).__name__, str(error), shoal.torch.is_recoverable(error)), None
        faulthandler.cancel_dump_traceback_later()
        pipe.send(said)
        if action == "end":
            os._exit(0)


def each(puppets, action, *values, **named):
    """Let all puppets do the action at once, and return their answers."""
    for puppet in puppets:
        puppet.tell(action, *values, **named)
    return [puppet.answer() for puppet in puppets]


def fails(call, *values, **named):
    try:
        call(*values, **named)
    except Said as said:
        return said
    raise AssertionError("it went well")


def begin(size, job=None):
    """Begin a new job of `size` ranks, and return them."""
    puppets = [Puppet() for _ in range(size)]
    store = f"{os.environ['TEST_FOLDER']}/store-{next(_numbers)}"
    for rank, puppet in enumerate(puppets):
        puppet.tell("init", store, rank, size, job)
    for puppet in puppets:
        puppet.answer()
    return puppets


def new_name():
    return f"elastic-{next(_numbers)}"


def lose(those, left, action="sum"):
    """Some are killed while those who are left are in a call."""
    for puppet in left:
        puppet.tell(action)
    for puppet in those:
        puppet.kill()
    for puppet in left:
        said = fails(puppet.answer)
        assert said.recoverable, said
        assert "rank lost" in said.text, said


def come(puppets, newcomers, job):
    """Ranks of the job go on until each newcomer is among them: nobody waits for one that is not there yet."""
    members = list(puppets)
    for newcomer in newcomers:
        newcomer.tell("join", job)
        size = len(members)
        while size == len(members):
            each(members, "reconfigure")
            (_, size), *_ = each(members, "place")
        newcomer.answer()
        members.append(newcomer)


def check(puppets):
    """They are all there is, and what they do together works; their ranks."""
    size = len(puppets)
    places = each(puppets, "place")
    assert sorted(places) == [(rank, size) for rank in range(size)], places
    assert each(puppets, "sum") == [size * (size + 1) / 2] * size
    assert each(puppets, "broadcast") == [42.0] * size
    return [rank for rank, _ in places]


def end(puppets):
    for puppet in puppets:
        puppet.tell("end")
    for puppet in puppets:
        puppet.answer()
        _puppets.remove(puppet)
        puppet.pipe.close()
        assert os.waitpid(puppet.pid, 0)[1] == 0


def test_the_same_again_and_again():
    puppets = begin(3)
    for count in range(1, 4):
        assert each(puppets, "generation") == [count] * 3
        assert check(puppets) == [0, 1, 2]
        assert each(puppets, "ring") == [3.0, 1.0, 2.0]
        assert each(puppets, "pair") == [3.0, 3.0, None]
        each(puppets, "reconfigure")
    end(puppets)


def test_going_on_waits_for_what_is_under_way():
    puppets = begin(2)
    for _ in range(3):
        assert each(puppets, "go_on_with_many_under_way") == [[3.0] * 20] * 2
    assert check(puppets) == [0, 1]
    end(puppets)


def test_the_last_rank_is_lost():
    a, b, c = begin(3)
    lose([c], [a, b])
    each([a, b], "reconfigure")
    assert check([a, b]) == [0, 1]
    end([a, b])


def test_the_middle_and_the_first_rank_are_lost():
    """The first one had torch's store."""
    a, b, c, d = begin(4)
    lose([b], [a, c, d])
    each([a, c, d], "reconfigure")
    assert check([a, c, d]) == [0, 1, 2]
    lose([a], [c, d], "ring")
    each([c, d], "reconfigure")
    assert check([c, d]) == [0, 1]
    assert each([c, d], "pair") == [3.0, 3.0]
    end([c, d])


def test_another_is_lost_meanwhile():
    """At whatever moment: it has asked for the next generation, or not."""
    a, b, c, d = begin(4)
    lose([d], [a, b, c])
    c.tell("reconfigure")
    for puppet in (a, b):
        puppet.tell("go_on")
    c.kill()
    for puppet in (a, b):
        puppet.answer()
    assert check([a, b]) == [0, 1]
    end([a, b])


def test_a_late_joiner():
    job = new_name()
    a, b = begin(2, job)
    late = Puppet()
    come([a, b], [late], job)
    assert check([a, b, late]) == [0, 1, 2]
    lose([a], [b, late])
    again = Puppet()
    each([b, late], "reconfigure")
    come([b, late], [again], job)
    assert check([b, late, again]) == [0, 1, 2]
    end([b, late, again])


def test_as_many_as_before():
    """Two wait for a third, who comes later, and all are in one generation."""
    job = new_name()
    a, b, c = begin(3, job)
    lose([b], [a, c])
    a.tell("reconfigure", least_ranks=3)
    c.tell("reconfigure", least_ranks=2)  # what another wishes for counts for it, too
    assert not a.pipe.poll(0.5) and not c.pipe.poll(0), "somebody has not waited"
    late = Puppet()
    late.call("join", job)
    a.answer()
    c.answer()
    assert each([a, c, late], "generation") == [2] * 3
    assert check([a, c, late]) == [0, 1, 2]
    end([a, c, late])


def test_fewer_than_before():
    """Nobody comes: that is no error."""
    a, b, c = begin(3)
    lose([b], [a, c])
    a.tell("reconfigure", least_ranks=3, wait=datetime.timedelta(seconds=1))
    c.tell("reconfigure")
    a.answer()
    c.answer()
    assert each([a, c], "generation") == [2] * 2
    assert check([a, c]) == [0, 1]
    end([a, c])


def test_one_is_lost_while_they_wait():
    job = new_name()
    a, b, c = begin(3, job)
    lose([c], [a, b])
    for puppet in (a, b):
        puppet.tell("reconfigure", least_ranks=2 if puppet is b else 3)
    assert not a.pipe.poll(0.5), "it has not waited"
    b.kill()
    late = [Puppet(), Puppet()]
    for puppet in late:
        puppet.tell("join", job)
    for puppet in (a, *late):
        puppet.answer()
    assert check([a, *late])[0] == 0
    end([a, *late])


def test_wishes_without_sense():
    """They are refused before anything is given up."""
    a, b = begin(2)
    second = datetime.timedelta(seconds=1)
    for options, text in (
        ({"least_ranks": -1}, "least_ranks is -1, it must be 0 to 32768"),
        ({"least_ranks": 32769}, "least_ranks is 32769, it must be 0 to 32768"),
        ({"least_ranks": "two"}, "least_ranks is 'two', it must be 0 to 32768"),
        ({"least_ranks": 2, "wait": -second}, "it must be 0 to timeout"),
        (
            {"least_ranks": 2, "wait": 2 * second, "timeout": second},
            "wait is 0:00:02, it must be 0 to timeout, 0:00:01",
        ),
        ({"wait": second}, "wait is 0:00:01 without least_ranks"),
    ):
        said = fails(a.call, "reconfigure", **options)
        assert said.kind == "InvalidError" and text in said.text, said
    assert check([a, b]) == [0, 1]
    end([a, b])


def test_down_and_up_and_one_to_all():
    """Ranks that leave are gone to the others, and come again under the job's name."""
    job = new_name()
    a, b, c = begin(3, job)
    each([b, c], "leave")
    assert fails(a.call, "sum").recoverable
    a.call("reconfigure")
    assert check([a]) == [0]
    come([a], [b, c], job)
    assert check([a, b, c]) == [0, 1, 2]
    each([b, c], "leave")
    a.call("reconfigure")
    assert check([a]) == [0]
    end([a, b, c])


def test_split_and_merge():
    job = new_name()
    a, b, c = begin(3, job)
    each([b, c], "leave")
    a.call("reconfigure")
    store = f"{os.environ['TEST_FOLDER']}/store-{next(_numbers)}"
    b.tell("init", store, 0, 2, None)
    c.call("init", store, 1, 2, None)
    b.answer()
    assert check([b, c]) == [0, 1]
    assert check([a]) == [0]
    each([b, c], "leave")
    come([a], [b, c], job)
    assert check([a, b, c]) == [0, 1, 2]
    end([a, b, c])


def test_after_an_abort():
    """One leaves while the others are in a call."""
    job = new_name()
    a, b, c = begin(3, job)
    for puppet in (a, c):
        puppet.tell("sum")
    b.call("leave")
    for puppet in (a, c):
        assert fails(puppet.answer).recoverable
    each([a, c], "reconfigure")
    come([a, c], [b], job)
    assert check([a, c, b]) == [0, 1, 2]
    end([a, b, c])


def test_what_is_of_a_generation_that_is_over():
    a, b, c = begin(3)
    each([a, b, c], "reconfigure")
    said = [fails(puppet.call, "sum_of_before") for puppet in (a, b, c)]
    assert all("has gone on" in one.text and not one.recoverable for one in said), said
    assert check([a, b, c]) == [0, 1, 2]
    end([a, b, c])


def _wrappers(ours):
    a, b, c = begin(3)
    each([a, b, c], "wrap", ours)
    for _ in range(3):  # in the second one torch waits where its Work swallows errors
        assert each([a, b, c], "step") == [2.0] * 3
    lose([b], [a, c], "step")
    each([a, c], "reconfigure")
    said = [fails(puppet.call, "step") for puppet in (a, c)]
    assert all("has gone on" in one.text for one in said), said
    each([a, c], "rewrap", ours)
    assert each([a, c], "step") == [1.5] * 2
    end([a, c])


def test_wrappers_of_torch():
    _wrappers(False)


def test_wrappers_of_shoal():
    _wrappers(True)


def test_what_cannot_be_gone_on_from():
    a, b = begin(2)
    said = [fails(puppet.call, "join", "no such job") for puppet in (a, b)]
    assert all("there is a process group" in one.text for one in said), said
    for puppet in (a, b):
        puppet.tell("wrong_size")
    for puppet in (a, b):
        assert not fails(puppet.answer).recoverable
    for puppet in (a, b):
        puppet.tell("reconfigure")
    said = [fails(puppet.answer) for puppet in (a, b)]
    assert all(one.kind == "MismatchError" for one in said), said
    said = [fails(puppet.call, "reconfigure") for puppet in (a, b)]
    assert all("there is no process group" in one.text for one in said), said
    nobody = fails(a.call, "join", "no such job", datetime.timedelta(milliseconds=300))
    assert nobody.kind == "TimeoutError", nobody
    end([a, b])


def main(cases=None):
    with tempfile.TemporaryDirectory(prefix="shoal-elastic-") as folder:
        os.environ["TEST_FOLDER"] = folder
        for name, case in list((cases or globals()).items()):
            if not name.startswith("test_"):
                continue
            text, begun = "", time.monotonic()
            try:
                case()
                assert not _puppets, "the case has left ranks"
            except Exception:
                text = traceback.format_exc()
            with contextlib.suppress(ProcessLookupError):
                for puppet in list(_puppets):
                    puppet.kill()
            print(f"{name}: {time.monotonic() - begun:.3f} s")  # how long it has hung, if it has
            print("RESULT " + json.dumps([name, text]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
