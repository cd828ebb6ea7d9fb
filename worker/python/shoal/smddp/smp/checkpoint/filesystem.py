"""torch.sagemaker.distributed.checkpoint.filesystem: checkpoints are files in a folder that all ranks see."""

import os

from shoal import errors
from torch.distributed import checkpoint


class DistributedFileSystemReader(checkpoint.FileSystemReader):
    """torch's reader. path: the folder."""

    def __init__(self, path, *arguments, **named):
        super().__init__(folder(path), *arguments, **named)


class DistributedFileSystemWriter(checkpoint.FileSystemWriter):
    """torch's writer. path: the folder. pre_write_hooks, post_write_hooks: called with the writer, where data
    is written: before the first byte, and after the last."""

    def __init__(self, path, *arguments, pre_write_hooks=(), post_write_hooks=(), **named):
        super().__init__(folder(path), *arguments, **named)
        self.pre_write_hooks, self.post_write_hooks = list(pre_write_hooks), list(post_write_hooks)
        self.is_coordinator = False

    def set_up_storage_writer(self, is_coordinator, *arguments, **named):
        self.is_coordinator = is_coordinator
        return super().set_up_storage_writer(is_coordinator, *arguments, **named)

    def write_data(self, plan, planner):
        for hook in self.pre_write_hooks:
            hook(self)
        written = super().write_data(plan, planner)
        for hook in self.post_write_hooks:
            hook(self)
        return written


def folder(path):
    """A checkpoint's path; what is no folder is an error."""
    text = os.fspath(path)
    if "://" in text:
        raise errors.UnsupportedError(f"checkpoint: {text} is an address; checkpoints are files in folders")
    return text
