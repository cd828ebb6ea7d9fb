"""torch.sagemaker.state: ranks, sizes and process groups, from torch.sagemaker.init() on."""

import dataclasses
import logging
import weakref

import torch
import torch.distributed as dist

from shoal import errors
from shoal.smddp.smp import _meshes, _random, _ranker
from shoal.torch import _process_group

__all__ = ["state"]

_log = logging.getLogger("shoal.smddp")

# Group: the dimensions in which its members differ. All that differ in none are one rank's own.
GROUPS = {
    "tp": ("tp",),
    "shard": ("shard",),
    "ep": ("ep",),
    "rep": ("rep",),  # the replicas of a shard of what is not the same on all expert parallel ranks
    "dense_rep": ("rep", "ep"),  # the replicas of a shard of all the rest
    "dp": ("rep", "ep", "shard"),  # the ranks that read different data
    "rep_rank": ("ep", "shard", "tp"),  # the ranks of one replica of the model
}


def _of_configuration(name, settable=False):
    def get(self):
        if not self.is_initialized and name in self._overrides:
            return self._overrides[name]
        return getattr(self._started("_configuration", name), name)

    def put(self, value):
        self._override(name, value)

    return property(get, put if settable else None, doc=f"{name}, as configured")


def _rank_in(dimension):
    def get(self):
        return self._started("ranker", f"{dimension}_rank").coordinates(self.rank)[dimension]

    return property(get, doc=f"this rank's position in {dimension}, from 0")


def _size_of(dimension):
    def get(self):
        return self._started("ranker", f"{dimension}_size").sizes[dimension]

    return property(get, doc=f"how many ranks {dimension} has")


def _group(name):
    def get(self):
        return self._started("_groups", f"{name}_process_group")[name]

    varying = " and ".join(GROUPS[name])
    return property(get, doc=f"the ProcessGroup of this rank's ranks that differ in {varying} only")


class State:
    """The state that init() sets up; before init(), reading it raises StateError.

    A process group is None where it has nothing to do: everywhere but in dp_process_group and
    world_process_group when the script's own FSDP is left as it is (is_native)."""

    def __init__(self):
        self._overrides = {}
        # The default group, and the partitions whose groups were made with their members alone. Such a group has its
        # name from its ranks, and one that is made again would find in torch's store what the first one has left.
        self._made_alone = (None, set())
        self._clear()

    def _clear(self):
        self._configuration = self._ranker = self._groups = self._tracker = self._world = None
        self._meshes = {}  # made when they are asked for
        self._own_groups = []  # those of _groups that start() made

    hybrid_shard_degree = _of_configuration("hybrid_shard_degree", settable=True)
    tensor_parallel_degree = _of_configuration("tensor_parallel_degree", settable=True)
    expert_parallel_degree = _of_configuration("expert_parallel_degree", settable=True)
    context_parallel_degree = _of_configuration("context_parallel_degree", settable=True)
    sm_activation_offloading = _of_configuration("sm_activation_offloading")
    activation_loading_horizon = _of_configuration("activation_loading_horizon")
    random_seed = _of_configuration("random_seed")
    fp8 = _of_configuration("fp8")
    fsdp_cache_flush_warnings = _of_configuration("fsdp_cache_flush_warnings")
    allow_empty_shards = _of_configuration("allow_empty_shards")

    tp_rank, tp_size, tp_process_group = _rank_in("tp"), _size_of("tp"), _group("tp")
    shard_rank, shard_size, shard_process_group = _rank_in("shard"), _size_of("shard"), _group("shard")
    ep_rank, ep_size, ep_process_group = _rank_in("ep"), _size_of("ep"), _group("ep")
    rep_rank, rep_size, rep_process_group = _rank_in("rep"), _size_of("rep"), _group("rep")
    rep_rank_process_group = _group("rep_rank")
    dense_rep_process_group = _group("dense_rep")
    dp_process_group = _group("dp")

    # There is no context parallelism here: one rank has a whole sequence.
    cp_rank, cp_size, cp_process_group = 0, 1, None

    @property
    def device_mesh(self):
        """The grid as a torch.distributed.DeviceMesh of these groups: dp_replicate, ep, dp_shard, tp."""
        return self._mesh("device_mesh", _meshes.of_grid)

    @property
    def dp_device_mesh(self):
        """dp_replicate and dp_shard of what is not an expert, for FSDP's device_mesh and fully_shard's mesh."""
        return self._mesh("dp_device_mesh", _meshes.of_data)

    def _mesh(self, name, make):
        meshes = self._started("_meshes", name)
        if name not in meshes:
            meshes[name] = make(self)
        return meshes[name]

    @property
    def is_initialized(self):
        """False again when the process group has ended that init() has made groups of."""
        return self._configuration is not None and dist.GroupMember.WORLD is self._world

    @property
    def is_native(self):
        """True where FSDP and its strategy are the script's own: no degree is above 1."""
        return _ranker.is_native(self._started("_configuration", "is_native"))

    @property
    def configuration(self):
        """The Configuration, frozen."""
        return self._started("_configuration", "configuration")

    @property
    def ranker(self):
        return self._started("_ranker", "ranker")

    @property
    def world_process_group(self):
        self._started("_groups", "world_process_group")
        return dist.GroupMember.WORLD

    @property
    def rank(self):
        self._started("_groups", "rank")
        return dist.get_rank()

    @property
    def world_size(self):
        self._started("_groups", "world_size")
        return dist.get_world_size()

    @property
    def dp_rank(self):
        return self.rank // self.tp_size

    @property
    def dp_size(self):
        return self.world_size // self.tp_size

    def get_rng_state_tracker(self):
        """The random generators of this rank's own, by name: RngStateTracker."""
        return self._started("_tracker", "get_rng_state_tracker()")

    @property
    def overrides(self):
        """Degrees that the script has set before init(): they go before every other source."""
        return dict(self._overrides)

    def start(self, configuration):
        """Make the groups; all ranks of the default group call it with the same Configuration."""
        self._clear()
        _check_agreement(configuration)
        ranker = _ranker.ranker_of(configuration, dist.get_world_size())
        self._groups = self._make_groups(ranker, _ranker.is_native(configuration))
        self._configuration, self._ranker, self._world = configuration, ranker, dist.GroupMember.WORLD
        self._tracker = _random.make_tracker(
            configuration.random_seed, tp_rank=self.tp_rank, tp_size=self.tp_size, ep_rank=self.ep_rank
        )
        if dist.get_rank() == 0:
            sizes = ", ".join(f"{dimension} {size}" for dimension, size in ranker.sizes.items())
            _log.info("torch.sagemaker: %d ranks: %s", ranker.world_size, sizes)

    def reset(self):
        """Give back what init() made, so that all is as before it. All ranks call it, before the process group ends."""
        if self.is_initialized:
            for group in self._own_groups:
                dist.destroy_process_group(group)
        self._overrides = {}
        self._clear()

    def _make_groups(self, ranker, native):
        """{name of GROUPS: this rank's ProcessGroup}. Equal partitions of the ranks share their groups."""
        made = {(tuple(range(ranker.world_size)),): dist.GroupMember.WORLD}
        groups = {}
        for name, varying in GROUPS.items():
            if native and name != "dp":
                groups[name] = None
                continue
            partition = tuple(tuple(ranks) for ranks in ranker.groups(*varying))
            if partition not in made:
                made[partition] = self._make_partition(partition)
            groups[name] = made[partition]
        return groups

    def _make_partition(self, partition):
        """Every rank makes its own group of each partition, or takes part in making all of them, in the same order;
        returns its own."""
        own, rank, how = None, dist.get_rank(), {}
        timeout = _timeout_of(dist.GroupMember.WORLD)
        if timeout is not None:
            how["timeout"] = timeout
        if self._is_first(partition):
            how["use_local_synchronization"] = True
            partition = [ranks for ranks in partition if rank in ranks]
        for ranks in partition:
            group = dist.new_group(list(ranks), **how)
            if rank in ranks:
                own = group
        self._own_groups.append(own)
        return own

    def _is_first(self, partition):
        """Whether members alone may make its groups; the same on all ranks."""
        world, made = self._made_alone
        if world is None or world() is not dist.GroupMember.WORLD:
            made = set()
            self._made_alone = (weakref.ref(dist.GroupMember.WORLD), made)
        if partition in made:
            return False
        made.add(partition)
        return True

    def _started(self, attribute, name):
        if not self.is_initialized:
            raise errors.StateError(
                f"torch.sagemaker.state.{name}: torch.sagemaker.init() has not been called"
                + (" since the process group ended" if self._configuration else "")
            )
        return self.__dict__[attribute if attribute.startswith("_") else f"_{attribute}"]

    def _override(self, name, value):
        if not self.is_initialized:
            self._overrides[name] = value
        elif value != getattr(self._configuration, name):
            raise errors.StateError(
                f"torch.sagemaker.state.{name} is {getattr(self._configuration, name)} since "
                f"torch.sagemaker.init(), whose groups rest on it: set it to {value!r} before that"
            )


def _timeout_of(group):
    """The one that a process group was given, which torch does not hand on to groups within; None: it does not say."""
    member = _process_group.member_of(group)
    if member is not None:
        return member.timeout
    holders = [group]
    if hasattr(group, "_get_backend"):  # torch keeps it with what serves a device
        holders += [_backend_of(group, device) for device in ("cpu", "cuda")]
    for holder in holders:
        for one in (holder, getattr(holder, "options", None)):
            if getattr(one, "_timeout", None) is not None:
                return one._timeout
    return None


def _backend_of(group, device):
    try:
        return group._get_backend(torch.device(device))
    except RuntimeError:  # it serves no such device
        return None


def _check_agreement(configuration):
    """Raise on every rank where ranks are configured differently: their groups would not fit together."""
    mine = dataclasses.asdict(configuration)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, other in enumerate(everyone):
        for name, value in everyone[0].items():
            if other[name] != value:
                raise errors.MismatchError(
                    f"torch.sagemaker.init(): {name} is {value} on rank 0 and {other[name]} on rank {rank}"
                )


state = State()
