"""A process group that goes on with other ranks as torch itself has it (torch.distributed._reconfigure, mid 2026):
those that are to be members have agreed by other means, such as a store, on a number that is new and on the handles of
all. The group is the same object afterwards, with another rank and another size.

Each such step is a job of its own, named by the number and the handles: so it matters nothing whether the ranks were
in one job before, or in several, nor what has become of those. Where torch has no such function the methods are there
all the same.
"""

import hashlib
import json
import secrets
import time

from shoal import errors


class Reconfigurable:
    """Of a ProcessGroup that is a whole job: what torch asks of one."""

    _handle = None  # what the others call this rank; made when it is asked for
    _numbers = frozenset()  # that have been used
    _place = None  # where its daemon is, once its first job is left

    def abort(self):
        if self.is_whole and self._holds:
            self._keep_place()
        super().abort()

    def _keep_place(self):
        """Keep the daemon's place before the group leaves its first job, with which the daemon may end."""
        if self._place is None:
            self._place = self.session.meeting.of_job(self.session.meeting.job)

    @property
    def supports_reconfigure(self):
        return self.is_whole

    def get_reconfigure_handle(self):
        self._check_whole("get_reconfigure_handle")
        if self._handle is None:
            self._handle = f"shoal/{secrets.token_hex(16)}"
        return self._handle

    def reconfigure(self, options):
        """options: torch's ReconfigureOptions. Returns a Work that is over: it waits until all members have come, and
        raises with the names of those that have not. It may be tried again, with another number, after an error."""
        self._check_whole("reconfigure")
        self.session.check_process()
        number, handles = options.uuid, list(options.handles)
        rank = self._check_members(number, handles)
        timeout = getattr(options, "timeout", None) or self.timeout
        self._numbers = self._numbers | {number}
        self._keep_place()
        place = self._place.of_job(_name_of(number, handles))
        store = self._store
        if self._holds:  # else the last time has failed
            self.session.retire(errors.StateError("this process group has been reconfigured"), time.monotonic())
        self._store, self._failure, self.is_whole = store, None, True
        try:
            self._begin_anew(place, rank, len(handles), timeout)
        except BaseException as error:
            self._fail(error if isinstance(error, errors.ShoalError) else None)
            raise  # and it may be tried again
        return self._work_that_is_over()

    def _check_whole(self, what):
        if not self.is_whole:
            raise errors.UnsupportedError(f"{what}: this process group is a part of a job")

    def _check_members(self, number, handles):
        """Its rank among them."""
        if number in self._numbers:
            raise errors.StateError(f"reconfigure: the number {number} was already used by this process group")
        if len(set(handles)) != len(handles):
            raise errors.InvalidError("reconfigure: a handle is there twice")
        if self._handle not in handles:
            raise errors.InvalidError(f"reconfigure: this rank's handle, {self._handle}, is not there")
        return handles.index(self._handle)

    def _forget_place(self):
        """The group is gone."""
        if self._place is not None:
            self._place.leave()
            self._place = None


def _name_of(number, handles):
    """The same for all members, and for nobody else."""
    text = json.dumps([number, handles]).encode()
    return f"reconfigured-{hashlib.sha256(text).hexdigest()[:40]}"
