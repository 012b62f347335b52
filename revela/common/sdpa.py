"""Selects the kernels of torch's scaled dot-product attention for training and encoding."""

import torch


def disable_cudnn_attention() -> None:
    """Exclude cuDNN from the kernels that SDPA chooses from.

    Since torch 2.11 SDPA prefers cuDNN on Hopper GPUs. cuDNN builds a plan for each exact shape, in
    0.4 to 0.9 s, and caches plans without limit; ragged batches have new shapes at each step.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
