"""Scripts that are written for SMDDP run on shoal as they are.

`install()` lets this interpreter import the names that such scripts import. README.md here says
which, and how it is done for an interpreter from its start.
"""

from shoal.smddp._names import install

__all__ = ["install"]
