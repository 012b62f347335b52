"""The kernels available to scaled dot-product attention."""

import subprocess
import sys


def test_importing_changes_nothing_and_programs_keep_from_cudnn():
    code = """
import torch, revela.inbatch, revela.retriever.encode
print(torch.backends.cuda.cudnn_sdp_enabled())
revela.retriever.encode.prepare_for_ragged_batches()
print(torch.backends.cuda.cudnn_sdp_enabled())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "False"]
