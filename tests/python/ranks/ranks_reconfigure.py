"""Process groups that go on as torch itself has it (torch.distributed._reconfigure): the rank's own methods, which
torch calls where it has that. The ranks and what tells them what to do are those of ranks_elastic.

The cases are those of torch's tests that need no other backend: basic, all-reduce, send and receive, shrinks of the
last and of a middle rank, down and up, one to all, identity, a late joiner, merge and split, after an abort, a number
that was used; and a rank that is killed."""

import datetime
import os
import sys
import types

import ranks_elastic
import shoal.torch
import torch.distributed as dist

begin, check, each, end = ranks_elastic.begin, ranks_elastic.check, ranks_elastic.each, ranks_elastic.end
fails, lose = ranks_elastic.fails, ranks_elastic.lose

if not hasattr(dist, "_reconfigure"):

    def reconfigure(uuid, handles, timeout):
        """Do what torch's own function does where torch has it."""
        options = types.SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout, hints={})
        return dist.GroupMember.WORLD.reconfigure(options)

else:
    reconfigure = dist._reconfigure


class Actions(ranks_elastic.Actions):
    options = {"reconfigurable": True}

    def handle(self):
        assert dist.GroupMember.WORLD.supports_reconfigure
        return dist.GroupMember.WORLD.get_reconfigure_handle()

    def begin_alone(self, store, node=None):
        """A job of this rank alone, and no daemon is configured."""
        del os.environ["SHOAL_SOCKET"]
        os.environ["SHOAL_INTERFACE"] = "lo"
        if node:
            os.environ["SHOAL_NODE"] = node
        self.init(store, 0, 1, None)

    def move(self, number, handles, seconds=60):
        reconfigure(number, handles, timeout=datetime.timedelta(seconds=seconds)).wait()
        group = dist.GroupMember.WORLD
        assert (group.rank(), group.size()) == (dist.get_rank(), dist.get_world_size())
        assert dist.get_world_size() == len(handles)

    def abort(self):
        dist.GroupMember.WORLD.abort()

    def part(self):
        """Ask a group that is a part of the job for a handle."""
        group = dist.new_group([0, 1], pg_options=shoal.torch.Options(reconfigurable=True))
        assert not group.supports_reconfigure
        group.get_reconfigure_handle()

    def mean(self):
        """By torch's DistributedDataParallel and ours, made anew."""
        means = []
        for ours in (False, True):
            self.wrap(ours)
            means.append(self.step())
        return means


ranks_elastic.Actions = Actions


def move(puppets, number, handles=None):
    handles = handles or each(puppets, "handle")
    each(puppets, "move", number, handles)


def test_basic_all_reduce_send_and_receive():
    puppets = begin(3)
    move(puppets, 100)
    assert check(puppets) == [0, 1, 2]
    assert each(puppets, "ring") == [3.0, 1.0, 2.0]
    assert each(puppets, "mean") == [[2.0] * 2] * 3
    assert each(puppets, "pair") == [3.0, 3.0, None]
    end(puppets)


def test_the_last_and_the_middle_rank_are_left_out():
    for gone in (2, 1):
        puppets = begin(3)
        move(puppets, 400)
        left = [puppet for number, puppet in enumerate(puppets) if number != gone]
        move(left, 401)
        assert check(left) == [0, 1]
        if hasattr(dist, "_reconfigure"):  # else wrappers ask in C++ for the size, and hear the first one
            assert each(left, "mean") == [[1.5] * 2] * 2
        end(puppets)


def test_down_and_up_and_one_to_all():
    puppets = begin(3)
    handles = each(puppets, "handle")
    for round in range(2):
        for number, puppet in enumerate(puppets):
            puppet.call("move", 600 + 10 * round + number, [handles[number]])
            assert check([puppet]) == [0]
        move(puppets, 605 + 10 * round, handles)
        assert check(puppets) == [0, 1, 2]
    end(puppets)


def test_the_same_in_another_order():
    puppets = begin(3)
    move(puppets, 800)
    move(puppets, 801)
    assert check(puppets) == [0, 1, 2]
    handles = each(puppets, "handle")
    each(puppets, "move", 802, handles[::-1])
    assert check(puppets) == [2, 1, 0]
    end(puppets)


def test_a_late_joiner():
    puppets = begin(3)
    handles = each(puppets, "handle")
    move(puppets[:1], 900, handles[:1])
    move(puppets, 901, handles)
    assert check(puppets) == [0, 1, 2]
    end(puppets)


def test_split_and_merge():
    puppets = begin(4)
    handles = each(puppets, "handle")
    for puppet in puppets[:2]:
        puppet.tell("move", 1000, handles[:2])
    for puppet in puppets[2:]:
        puppet.tell("move", 1001, handles[2:])
    for puppet in puppets:
        puppet.answer()
    assert check(puppets[:2]) == [0, 1]
    assert check(puppets[2:]) == [0, 1]
    move(puppets, 1002, handles)
    assert check(puppets) == [0, 1, 2, 3]
    end(puppets)


def test_after_a_loss_and_after_an_error():
    """A killed rank, then ranks that disagree: whatever has become of the last job."""
    a, b, c = begin(3)
    handles = each([a, b, c], "handle")
    lose([c], [a, b])
    move([a, b], 1200, handles[:2])
    assert check([a, b]) == [0, 1]
    for puppet in (a, b):
        puppet.tell("wrong_size")
    for puppet in (a, b):
        assert fails(puppet.answer).kind == "MismatchError"
    move([a, b], 1201, handles[:2])
    assert check([a, b]) == [0, 1]
    end([a, b])


def test_who_does_not_come_is_named():
    a, b = begin(2)
    handles = each([a, b], "handle")
    said = fails(a.call, "move", 1300, handles, 1)
    assert said.kind == "TimeoutError" and "rank 1 " in said.text, said
    assert "rank 1 " in fails(a.call, "sum").text
    move([a, b], 1301, handles)
    assert check([a, b]) == [0, 1]
    end([a, b])


def test_going_on_after_an_abort():
    """The group itself is aborted, and leaves its job."""
    a, b = begin(2)
    handles = each([a, b], "handle")
    each([a, b], "abort")
    assert "aborted" in fails(a.call, "sum").text
    move([a, b], 1200, handles)
    assert check([a, b]) == [0, 1]
    end([a, b])


def begin_alone(*nodes):
    """A rank on each of these nodes, each with a daemon that knows no other."""
    puppets = [ranks_elastic.Puppet() for _ in nodes]
    for number, (puppet, node) in enumerate(zip(puppets, nodes)):
        puppet.call("begin_alone", f"{os.environ['TEST_FOLDER']}/alone-{puppet.pid}-{number}", node)
    return puppets


def test_ranks_that_were_never_in_one_job():
    a, b, c = begin_alone("one", "one", "two")
    handles = each([a, b, c], "handle")
    move([a, b], 1400, handles[:2])
    assert check([a, b]) == [0, 1]
    lose([b], [a])
    (d,) = begin_alone("one")
    move([a, c, d], 1401)
    assert check([a, c, d]) == [0, 1, 2]
    assert each([a, c, d], "ring") == [3.0, 1.0, 2.0]
    lose([a], [c, d])
    move([d, c], 1402)
    assert check([d, c]) == [0, 1]
    end([c, d])


def test_some_have_a_configured_daemon():
    (a,), (b,) = begin(1), begin_alone("one")
    handles = each([a, b], "handle")
    for number, order in ((1500, handles), (1501, handles[::-1])):
        for puppet in (a, b):
            puppet.tell("move", number, order)
        for puppet in (a, b):
            said = fails(puppet.answer)
            assert said.kind == "InvalidError" and "SHOAL_SOCKET" in said.text, said
    end([a, b])


def test_what_is_refused():
    a, b = begin(2)
    handles = each([a, b], "handle")
    a.call("move", 1100, handles[:1])
    assert "already used" in fails(a.call, "move", 1100, handles[:1]).text
    assert "is not there" in fails(a.call, "move", 1101, handles[1:]).text
    assert "there twice" in fails(a.call, "move", 1102, handles[:1] * 2).text
    for strange in ("torch", handles[0] + "/", handles[0] + "/0123456789abcdef/host:1"):
        assert "is no handle" in fails(a.call, "move", 1104, [handles[0], strange]).text
    assert check([a]) == [0]
    move([a, b], 1103, handles)
    for puppet in (a, b):
        puppet.tell("part")
    for puppet in (a, b):
        assert "a part of a job" in fails(puppet.answer).text
    end([a, b])


if __name__ == "__main__":
    sys.exit(ranks_elastic.main({name: case for name, case in globals().items() if name.startswith("test_")}))
