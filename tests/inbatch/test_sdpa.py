"""The kernels available to scaled dot-product attention."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["torch", "revela.retriever.encode", "revela.inbatch"])
def test_cudnn_is_off_where_we_attend(module):
    code = f"import torch, {module}; print(torch.backends.cuda.cudnn_sdp_enabled())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(module == "torch")
