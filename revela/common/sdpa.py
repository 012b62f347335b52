"""torch's scaled dot-product attention as training and encoding use it."""

import torch


def disable_cudnn_attention() -> None:
    """Have SDPA choose among its own kernels.

    From torch 2.11 on it prefers cuDNN on Hopper GPUs, which builds a plan for each exact shape,
    0.4 to 0.9 s each, and caches them without bound; ragged batches bring new shapes at each step.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
