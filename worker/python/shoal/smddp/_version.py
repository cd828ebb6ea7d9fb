"""The version that smdistributed.dataparallel gives for itself."""

# The latest version whose interface has been published (aws/sagemaker-python-sdk, doc/api/training,
# release notes of the data parallel library); all before it are served as well.
__version__ = "1.8.0"

__all__ = ["__version__"]
