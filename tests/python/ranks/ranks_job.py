"""One rank of a job without launcher and configured daemon; what it does is its first argument."""

import datetime
import gc
import os
import signal
import sys
import threading

import shoal
import shoal.torch  # noqa: F401
import torch
import torch.distributed as dist
from shoal import errors, library
from shoal.torch import _daemon, _session
from shoal.torch._process_group import member_of

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def start(number=0, **more):
    store = f"file://{os.environ['TEST_STORE']}-{number}"
    dist.init_process_group("shoal", init_method=store, rank=RANK, world_size=SIZE, **more)


def check_sum():
    tensor = torch.full((100_000,), float(RANK + 1))
    dist.all_reduce(tensor)
    assert torch.all(tensor == SIZE * (SIZE + 1) / 2)
    # Wait until all have it: on another node one that ends next may be gone before the sum has come there.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"summed/{RANK}", "")
    store.wait([f"summed/{rank}" for rank in range(SIZE)])


def say(*words):
    print(*words, flush=True)


def join():
    """Join, work, leave, join again; the last time without leaving by name."""
    for number in range(3):
        start(number)
        session = member_of(dist.GroupMember.WORLD).session
        say("SOCKET", session.meeting.socket_path)
        with open("/proc/self/oom_score_adj") as own:
            with open(f"/proc/{daemon_pid(session.meeting.socket_path)}/oom_score_adj") as daemons:
                assert int(own.read()) > int(daemons.read())
        say("NODES", session.job.node_count, session.job.local_rank, session.job.local_size)
        del session
        check_sum()
        if number < 2:
            dist.destroy_process_group()


def name_the_job():
    """Say the names of three jobs: the first one, the next one, and one that has a name of its own."""
    for number in range(3):
        start(number, pg_options=shoal.torch.Options(job="own") if number == 2 else None)
        say("JOB", member_of(dist.GroupMember.WORLD).session.meeting.job)
        dist.destroy_process_group()


def name_the_job_differently():
    os.environ["SHOAL_JOB"] = f"train-{RANK // 2}"
    say_error(start)


def name_the_job_badly():
    say_error(start)


def name_the_job_under_shoalrun():
    """The launcher says where the ranks meet."""
    dist.init_process_group("shoal")
    say("JOB", member_of(dist.GroupMember.WORLD).session.meeting.job)


def outlive_the_modules():
    """A group that goes as the interpreter's end lets it: after the modules' names have."""
    start()
    check_sum()
    _session._end_process()
    os_of_session, _session.os = _session.os, None
    dist.destroy_process_group()
    gc.collect()
    _session.os = os_of_session
    say("GONE")


def say_error(call):
    """Say what the call raises: the class, and the first line of the text."""
    try:
        call()
    except shoal.ShoalError as error:
        say("ERROR", type(error).__name__, str(error).splitlines()[0])


def fail_to_join():
    """A daemon cannot be started on some node."""
    discarded = _daemon.EmbeddedDaemon.discard

    def say_and_discard(daemon):
        say("FOLDER", daemon.folder)
        discarded(daemon)

    _daemon.EmbeddedDaemon.discard = say_and_discard
    say_error(start)


def stay_away():
    """The last rank does not come."""
    if RANK < SIZE - 1:
        say_error(lambda: start(timeout=datetime.timedelta(seconds=2)))


def leave_early():
    """The rank that has started the daemon ends first; the others go on without it."""
    start()
    check_sum()
    others = dist.new_group(list(range(1, SIZE)))
    # A rank that still opens the group when rank 0 ends would hear of that end there.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"opened by {RANK}", "")
    if RANK == 0:
        store.wait([f"opened by {rank}" for rank in range(SIZE)])
        os._exit(0) if sys.argv[2] == "abruptly" else sys.exit(0)
    # Rank 0's end is an error only for those who still need it.
    say_error(lambda: dist.all_reduce(torch.ones(1)))
    del others


def death():
    """The last rank is killed while the others wait for it."""
    start()
    check_sum()
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(2):
        say_error(lambda: dist.all_reduce(torch.ones(5)))


def err():
    """An exception ends the last rank, in one of several ways, while the others wait for it."""
    start()
    check_sum()
    if RANK < SIZE - 1:
        say_error(lambda: dist.all_reduce(torch.ones(5)))
        return
    if sys.argv[2] == "handled":
        try:
            raise ValueError("it was of use")
        except ValueError:
            dist.destroy_process_group()
        return
    if sys.argv[2] == "interrupted":
        signal.raise_signal(signal.SIGINT)
    raise ValueError("a bad\nsample" + "!" * (5000 if sys.argv[2] == "at length" else 0))


def death_in_backward():
    """The last rank is killed; the others are in the backward pass of DDP."""
    start()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(3):
        loss = model(torch.ones(2, 4)).sum()
        if RANK == SIZE - 1 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            loss.backward()
        except RuntimeError as error:
            say("ERROR", type(error).__name__, error)


def interrupted_in_backward():
    """Ctrl-C comes while the loss of the last rank, in the backward pass, becomes an exception."""
    start()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    make_error = errors.make_error

    def make_interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return make_error(*arguments)

    errors.make_error = make_interrupted
    try:
        try:
            loss.backward()
        except RuntimeError:  # another thread made it: the interruption is raised at the interpreter's next look
            for _ in range(10):
                pass
    except KeyboardInterrupt:
        say("INTERRUPTED")


def fail_to_open():
    """A job that cannot be opened, in a process that goes on."""
    started = _daemon.EmbeddedDaemon.start

    def start_and_say(daemon, roster):
        started(daemon, roster)
        say("FOLDER", daemon.folder)

    def refuse(*arguments, **options):
        raise shoal.RefusedError("not this one")

    _daemon.EmbeddedDaemon.start, library.Job = start_and_say, refuse
    say_error(start)
    signal.pause()


def stay():
    """The first rank ends, the others do not."""
    start()
    say("SOCKET", member_of(dist.GroupMember.WORLD).session.meeting.socket_path)
    if RANK > 0:
        signal.pause()


def fork():
    """A child that is forked while another thread holds locks of the package, as a data loader may be;
    it ends as an interpreter does. The last rank's other child outlives the rank."""
    start()
    wrapper = shoal.torch.DistributedDataParallel(torch.nn.Linear(8, 8))
    wrapper(torch.ones(2, 8)).sum().backward()
    session = member_of(dist.GroupMember.WORLD).session
    # Nobody sends before all children have ended: the operation is under way in all of them.
    work = dist.irecv(torch.empty(5), (RANK + 1) % SIZE)
    with session.lock, session.completions.lock:
        child = os.fork()
    if child == 0:
        signal.alarm(30)  # the backstop
        say_error(lambda: dist.all_reduce(torch.ones(5)))
        say_error(work.wait)
        say("GRADIENTS", *(parameter.grad.add_(1).mean().item() for parameter in wrapper.parameters()))  # a copy
        say_error(lambda: wrapper(torch.ones(2, 8)).sum().backward())
        dist.destroy_process_group()
        sys.exit(0)
    say("CHILD", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    say("OWN", *(parameter.grad.mean().item() for parameter in wrapper.parameters()))
    dist.barrier()
    sent = dist.isend(torch.ones(5), (RANK - 1) % SIZE)
    work.wait()
    sent.wait()
    check_sum()
    dist.barrier()
    if RANK == SIZE - 1:
        if os.fork() == 0:
            # The pipe that the test reads is not to be kept open as well.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            signal.alarm(60)
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    say_error(lambda: dist.all_reduce(torch.ones(5)))


def fork_afterwards():
    """A child that is forked when the job is over, while somebody still holds its session: the numbers
    of the session's descriptors are others' by then."""
    start()
    session = member_of(dist.GroupMember.WORLD).session
    dist.destroy_process_group()
    ends = [end for _ in range(16) for end in os.pipe()]
    child = os.fork()
    if child == 0:
        for end in ends:
            os.fstat(end)
        os._exit(0)
    say("CHILD", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), session.pid == os.getpid())


def lose_the_thread():
    """The thread that completes operations that nobody waits for in Python ends by an exception."""
    start()
    alone = dist.new_group([0])
    session, store = member_of(dist.GroupMember.WORLD).session, dist.distributed_c10d._get_default_store()
    if RANK > 0:
        store.wait(["seen"])
        return

    def clear_completions():
        raise shoal.SystemCallError("no more")

    session.job.clear_completions = clear_completions
    threading.excepthook = lambda arguments: None  # Python's words would go in between
    # Nobody takes part in this one; the other completes, and is the thread's end.
    future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
    last = dist.all_reduce(torch.ones(5), group=alone, async_op=True)
    for wait in (future.wait, lambda: dist.all_reduce(torch.ones(1))):
        try:
            wait()
        except RuntimeError as error:
            say("ERROR", str(error).replace("\n", " "))
    del last
    store.set("seen", "yes")


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def daemon_pid(socket_path):
    """The process whose command line has the configuration beside this socket."""
    configuration = os.path.splitext(socket_path)[0] + ".json"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"shoald") and configuration.encode() in words:
            return int(pid)
    raise AssertionError(f"no daemon with {configuration}")


def train_step(wrapper):
    model, data = wrapper(torch.nn.Linear(64, 64)), torch.ones(2, 64)

    def step():
        model.zero_grad()
        model(data).sum().backward()

    return step


def every_call():
    """Return a step of the calls that sharded training makes, and of those that make Works of their own."""
    whole, part, group = torch.ones(SIZE * 64), torch.ones(64), dist.GroupMember.WORLD
    other = (RANK + 1) % SIZE

    def step():
        dist.all_gather_into_tensor(whole, part)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_to_all_single(torch.empty_like(whole), whole)
        dist.broadcast(part.fill_(1), 0, async_op=True).get_future().wait()
        group._start_coalescing(torch.device("cpu"))
        sends = [dist.isend(part, other), dist.irecv(torch.empty(64), other)]
        group._end_coalescing(torch.device("cpu")).wait()
        del sends
        dist.all_reduce(torch.ones(4, 4).to_sparse())

    return step


def many_steps():
    """2,000 steps after enough to have been all round the rings of a small arena; memory before, and after each
    500."""
    start()
    torch.set_num_threads(1)
    if sys.argv[2] == "calls":
        step, first = every_call(), 4400
    elif sys.argv[2] == "torch":
        step, first = train_step(torch.nn.parallel.DistributedDataParallel), 4400
    else:
        step, first = train_step(shoal.torch.DistributedDataParallel), 4400
    daemon = daemon_pid(member_of(dist.GroupMember.WORLD).session.meeting.socket_path)
    for number in range(first + 2000):
        if number >= first and (number - first) % 500 == 0:
            say("MEMORY", number, resident_bytes(os.getpid()), resident_bytes(daemon))
        step()
    dist.barrier()
    say("MEMORY", first + 2000, resident_bytes(os.getpid()), resident_bytes(daemon))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
