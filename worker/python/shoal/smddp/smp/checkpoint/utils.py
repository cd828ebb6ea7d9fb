"""torch.sagemaker.checkpoint.utils: folders of checkpoints. Names and meanings as Amazon's example scripts use
them."""

import logging
import os
import re
import shutil

_log = logging.getLogger("shoal.smddp")


def SORT_BY_LAST_INT(name):  # noqa: N802 - their name
    """The last number in a name, for sorting; -1 without one."""
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else -1


def limit_num_subdirs(root, count, sort_fn=SORT_BY_LAST_INT, regex=None, log=True):
    """Remove folders in `root`, whose names match regex, but for the `count` greatest by sort_fn; 0 and less:
    none is removed. log: whether this rank is the one that removes and says so. Returns what goes, or would."""
    names = [entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    names = sorted((name for name in names if regex is None or re.match(regex, name)), key=sort_fn)
    gone = names[:-count] if count > 0 else []
    for name in gone if log else ():
        _log.info("%s: %s goes, %d checkpoints are kept", root, name, count)
        shutil.rmtree(os.path.join(root, name))
    return gone
