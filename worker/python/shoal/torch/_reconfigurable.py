"""A process group that goes on with other ranks as torch itself has it (torch.distributed._reconfigure, mid 2026):
those that are to be members have agreed by other means, such as a store, on a number that is new and on the handles of
all. The group is the same object afterwards, with another rank and another size.

Each such step is a job of its own, named by the number and the handles: so it matters nothing whether the ranks were
in one job before, or in several, nor what has become of those. Where torch has no such function the methods are there
all the same.

Daemons that are configured know each other, and those that the ranks of one job have started know each other, too. A
handle says which of these a rank has: ranks whose daemons do not know each other meet anew, in the store that the
first handle names, and start daemons for the step.
"""

import hashlib
import json
import re
import secrets
import time

import torch.distributed as dist

from shoal import errors
from shoal.torch import _hosts, _rendezvous, _versions

# A handle says who this is. Where no daemon is configured it also names the meeting in which the daemon began, and a
# store.
_HOST = r"(?P<host>[0-9a-f.:]{2,45}(%[0-9A-Za-z_.-]{1,15})?)"
_HANDLE = re.compile(rf"shoal/[0-9a-f]{{32}}(/(?P<meeting>[0-9a-f]{{16}})/{_HOST}:(?P<port>[0-9]{{1,5}}))?")


class Reconfigurable:
    """Methods that torch asks of a ProcessGroup that is a whole job."""

    _handle = None  # what the others call this rank; made when it is asked for
    _numbers = frozenset()  # that have been used
    _place = None  # where its daemon is, once its first job is left
    _offered = None  # the store for those that meet anew

    def abort(self):
        if self.is_whole and self._holds:
            self._keep_place()
        super().abort()

    def _keep_place(self):
        """Keep the daemon's place before the group leaves its first job, with which the daemon may end."""
        if self._place is None:
            first = self.session.meeting
            self._place = first.of_job(first.job, first.name)

    @property
    def supports_reconfigure(self):
        return self.is_whole

    def get_reconfigure_handle(self):
        self._check_whole("get_reconfigure_handle")
        if self._handle is None:
            self._handle = f"shoal/{secrets.token_hex(16)}{self._where()}"
        return self._handle

    def _where(self):
        """Return what the handle says besides who this is."""
        self._keep_place()
        if not self._place.is_embedded:
            return ""
        host = _hosts.own_address()
        self._offered = _versions.make_store(host, 0, True, self.timeout)
        return f"/{self._place.name}/{host}:{self._offered.port}"

    def reconfigure(self, options):
        """options: torch's ReconfigureOptions. Returns a Work that is over: it waits until all members have come, and
        raises with the names of those that have not. It may be tried again, with another number, after an error."""
        self._check_whole("reconfigure")
        self.session.check_process()
        number, handles = options.uuid, list(options.handles)
        rank, said = self._check_members(number, handles)
        timeout = getattr(options, "timeout", None) or self.timeout
        self._numbers = self._numbers | {number}
        self._keep_place()
        store = self._store
        if self._holds:  # else the last time has failed
            self.session.retire(errors.StateError("this process group has been reconfigured"), time.monotonic())
        self._store, self._failure, self.is_whole = store, None, True
        try:
            place = self._place_of_step(_name_of(number, handles), said, rank, timeout)
            self._begin_anew(place, rank, len(handles), timeout)
        except BaseException as error:
            self._fail(error if isinstance(error, errors.ShoalError) else None)
            raise  # and it may be tried again
        return self._work_that_is_over()

    def _place_of_step(self, name, said, rank, timeout):
        """Return this step's Place, whose daemon all members' daemons know. said: what each handle says."""
        if len({its["meeting"] for its in said}) == 1:
            return self._place.of_job(name)
        store = _versions.make_store(_hosts.from_here(said[0]["host"]), int(said[0]["port"]), False, timeout)
        return _rendezvous.meet(dist.PrefixStore(name, store), rank, len(said), timeout, name)

    def _check_whole(self, what):
        if not self.is_whole:
            raise errors.UnsupportedError(f"{what}: this process group is a part of a job")

    def _check_members(self, number, handles):
        """Return its rank among them, and what each handle says."""
        if number in self._numbers:
            raise errors.StateError(f"reconfigure: the number {number} was already used by this process group")
        if len(set(handles)) != len(handles):
            raise errors.InvalidError("reconfigure: a handle is there twice")
        said = [_HANDLE.fullmatch(handle) for handle in handles]
        if None in said:
            strange = handles[said.index(None)]
            raise errors.InvalidError(f"reconfigure: {strange!r} is no handle of shoal's (get_reconfigure_handle)")
        if self._handle not in handles:
            raise errors.InvalidError(f"reconfigure: this rank's handle, {self._handle}, is not there")
        if len({its["host"] is None for its in said}) > 1:
            raise errors.InvalidError(
                "reconfigure: some ranks have a configured daemon, and some have none: set SHOAL_SOCKET on all or on"
                " none"
            )
        return handles.index(self._handle), said

    def _forget_place(self):
        """The group is gone."""
        if self._place is not None:
            self._place.leave()
            self._place = self._offered = None


def _name_of(number, handles):
    """Return a name for the job that is the same for all members, and for nobody else."""
    text = json.dumps([number, handles]).encode()
    return f"reconfigured-{hashlib.sha256(text).hexdigest()[:40]}"
