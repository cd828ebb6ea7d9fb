"""Scripts that are written for SMDDP run on shoal as they are."""
