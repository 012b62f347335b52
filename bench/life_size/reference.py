"""Embeddings of a trained retriever: as loaded by revela, and computed by hand in float32."""

import json
from pathlib import Path
from typing import Any

import numpy as np

MAX_LENGTH = 2048


def by_revela(encoder: dict[str, Any], texts: list[str], precision: str) -> np.ndarray:
    """Return embeddings (N, D) of passages as in an evaluation in this precision."""
    from revela.config.evaluation import EncoderModel
    from revela.config.settings import parse_settings
    from revela.retriever.encode import load_encoder

    model = parse_settings(EncoderModel, json.dumps(encoder))
    loaded = load_encoder(model, precision, "cpu")
    return loaded.encode(texts, "passage", MAX_LENGTH).numpy()


def by_hand(encoder: dict[str, Any], texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings (N, D) of passages, with the adapter and of the backbone only.

    Uses transformers and the adapter's file, without revela: W + α/r · BA, one text at a time, last
    token.
    """
    import torch
    import transformers
    from safetensors.torch import load_file

    folder = Path(encoder["retriever"])
    adapter = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    base = adapter["base_model_name_or_path"]
    model = transformers.AutoModel.from_pretrained(base, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    prefix = encoder["encoding"].get("passage_prefix", "Passage: ")

    def embed() -> np.ndarray:
        rows = []
        for text in texts:
            ids = [*tokenizer(prefix + text)["input_ids"][: MAX_LENGTH - 1], tokenizer.eos_token_id]
            rows.append(model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1])
        return torch.nn.functional.normalize(torch.stack(rows), dim=-1).numpy()

    with torch.inference_mode():
        bare = embed()
        weights = load_file(folder / "adapter_model.safetensors")
        scale = adapter["lora_alpha"] / adapter["r"]
        for name in (name for name in weights if "lora_A" in name):
            module = name.removeprefix("base_model.model.").partition(".lora_A")[0]
            up, down = weights[name.replace("lora_A", "lora_B")], weights[name]
            model.get_submodule(module).weight += scale * (up.float() @ down.float())
        return embed(), bare


def cosines(left: np.ndarray, right: np.ndarray) -> list[float]:
    """Return the cosine of each pair of rows of unit length."""
    return (left * right).sum(axis=1).tolist()
