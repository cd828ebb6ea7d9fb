"""torch.sagemaker.checkpoint.constants: keys that scripts put into their checkpoints beside the state."""

SMP_IS_PARTIAL_KEY = "smp_is_partial"
SMP_IS_LOAD_INFO_KEY = "smp_is_load_info"
