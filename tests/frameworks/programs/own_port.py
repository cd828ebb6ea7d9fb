"""A plugin of pytest: accelerate's tests of notebooks take the port that is theirs, instead of one for all machines."""

import functools
import os

import accelerate

accelerate.notebook_launcher = functools.partial(accelerate.notebook_launcher, use_port=os.environ["TEST_PORT"])
