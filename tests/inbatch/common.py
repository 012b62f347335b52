"""Small models and random chunks."""

import torch
import transformers

from tests.conftest import tiny_llama

TEMPERATURES = {"uniform": 1e6, "warm": 0.5, "sharp": 0.05, "one-hot": 1e-4}


def tiny_qwen2() -> transformers.Qwen2ForCausalLM:
    torch.manual_seed(1)
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
        )
    )


MODELS = {
    "llama": lambda: tiny_llama(vocab_size=50, num_key_value_heads=4),
    "llama-gqa": lambda: tiny_llama(vocab_size=50, tie_word_embeddings=False),
    "qwen2": tiny_qwen2,
}


def random_chunks(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, 50, (n,), generator=generator).tolist() for n in lengths]
