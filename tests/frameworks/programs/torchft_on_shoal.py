"""A plugin of pytest: torchft's own tests find a group of shoal where they ask for torchft's group of Gloo.

They know the words that Gloo has for a peer that is lost, and for one that does not come, and take shoal's beside them.
"""

import unittest

import torchft.process_group
from train_torchft import ProcessGroupShoal

GLOOS_TO_OURS = {"Connection closed by peer|": "rank lost|", "timeout after 10ms|": "timed out: rank 1 |"}

torchft.ProcessGroupGloo = torchft.process_group.ProcessGroupGloo = ProcessGroupShoal
_raises_regex = unittest.TestCase.assertRaisesRegex


def assert_raises_regex(case, kind, pattern, *more, **named):
    for gloos, ours in GLOOS_TO_OURS.items():
        pattern = pattern.replace(gloos, gloos + ours)
    return _raises_regex(case, kind, pattern, *more, **named)


unittest.TestCase.assertRaisesRegex = assert_raises_regex
