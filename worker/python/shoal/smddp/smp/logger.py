"""torch.sagemaker.logger: the log that scripts share with this package."""

import logging

__all__ = ["get_logger"]


def get_logger(name="shoal.smddp"):
    """A logger whose lines are seen from INFO on, as scripts expect of theirs. Where the process has set up
    logging by itself, its ways are left alone."""
    logger = logging.getLogger(name)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    return logger
