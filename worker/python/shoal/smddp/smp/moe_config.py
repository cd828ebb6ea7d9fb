"""torch.sagemaker.moe.moe_config: how a mixture of experts is to be done."""

import dataclasses
import numbers

from shoal import errors
from shoal.smddp import _log
from shoal.smddp.smp import _configuration

__all__ = ["MoEConfig"]

LOAD_BALANCING = ("sinkhorn", "aux_loss", "balanced", "none")


@dataclasses.dataclass
class MoEConfig:
    """Names, meanings and defaults are those of SMP v2's reference, and `use_cpu_initialization` of its
    examples. Raises InvalidError with the field, UnsupportedError for a global shuffle of tokens."""

    smp_moe: bool = True
    random_seed: int = 12345
    moe_load_balancing: str = "sinkhorn"
    global_token_shuffle: bool = False
    moe_all_to_all_dispatcher: bool = True
    moe_aux_loss_coeff: float = 0.001  # of moe_load_balancing "aux_loss" alone
    moe_z_loss_coeff: float = 0.001  # of all of them; 0: none
    use_cpu_initialization: bool = False

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not _is(value, field.type):
                raise errors.InvalidError(
                    f"MoEConfig: {field.name} is {value!r}, but a {field.type.__name__} is wanted"
                )
        if self.moe_load_balancing not in LOAD_BALANCING:
            raise errors.InvalidError(
                f"MoEConfig: moe_load_balancing is {self.moe_load_balancing!r}, "
                f"but one of {', '.join(LOAD_BALANCING)} is wanted"
            )
        if not 0 <= self.random_seed <= _configuration.SEED_MOST:
            raise errors.InvalidError(
                f"MoEConfig: random_seed is {self.random_seed}, but 0 to {_configuration.SEED_MOST} is wanted"
            )
        for name in ("moe_aux_loss_coeff", "moe_z_loss_coeff"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise errors.InvalidError(f"MoEConfig: {name} is {getattr(self, name)}, and 0 is the least")
        if self.global_token_shuffle:
            raise errors.UnsupportedError("MoEConfig: global_token_shuffle is not done here")
        if not self.moe_all_to_all_dispatcher:
            _log.warn_on_rank_0("MoEConfig: moe_all_to_all_dispatcher: tokens go by all-to-all all the same")


def _is(value, kind):
    if kind is bool:
        return isinstance(value, (bool, int)) and value in (0, 1)
    wide = {int: numbers.Integral, float: numbers.Real}.get(kind, kind)
    return isinstance(value, wide) and not isinstance(value, bool)
