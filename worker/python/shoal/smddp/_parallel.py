"""smdistributed.dataparallel.torch.parallel, as versions 1.0 to 1.3 of the library had it."""

import shoal.torch
from shoal import errors

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(shoal.torch.DistributedDataParallel):
    """shoal's wrapper, whose gradients lie where the daemon reads them, with the arguments of the
    library's in its order; those of torch's wrapper can be given by name. Buffers are broadcast where
    broadcast_buffers says so, and a process_group is one of torch.distributed or group.WORLD. Devices
    are said of a module on one, as scripts for GPUs say them: of a module in memory they mean nothing."""

    def __init__(
        self,
        module,
        device_ids=None,
        output_device=None,
        broadcast_buffers=True,
        process_group=None,
        bucket_cap_mb=None,
        *,
        gradient_accumulation_steps=1,
        **options,
    ):
        if gradient_accumulation_steps not in (None, 1):
            raise errors.UnsupportedError(
                f"gradient_accumulation_steps={gradient_accumulation_steps}: its meaning was never"
                " published; accumulate inside no_sync()"
            )
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            device_ids = output_device = None
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            broadcast_buffers=broadcast_buffers,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            **options,
        )
