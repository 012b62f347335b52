"""Miniatures of models: architecture and special tokens of the real ones, random weights."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from tests.rehearsal.material import articles


@dataclass(frozen=True)
class _Family:
    """Common properties of the models of a family."""

    parts: tuple[str, ...]  # a model of this family has one of these in its name
    architecture: str
    eos: str
    bos: str | None = None
    pad: str | None = None
    template: str = "$A"  # special tokens around a text
    positions: int = 4096
    changes: dict[str, Any] = field(default_factory=dict)


SPECIAL = ("bos", "pad", "eos")
_PICKLED = ("bge-m3", "codebert", "contriever", "laprador", "retromae", "unixcoder")
"""Parts of the names whose repositories hold pickled weights, and safetensors in a pull request."""
_DECODER = {"num_key_value_heads": 2, "tie_word_embeddings": True}
_BEGIN, _END, _TEXT_END = "<|begin_of_text|>", "<|end_of_text|>", "<|endoftext|>"
_FAMILIES = [
    _Family(("mistral",), "MistralForCausalLM", "</s>", "<s>", None, "<s> $A", changes=_DECODER),
    _Family(("smollm",), "LlamaForCausalLM", _TEXT_END, _TEXT_END, changes=_DECODER),
    _Family(("qwen",), "Qwen2ForCausalLM", _TEXT_END, None, _TEXT_END, changes=_DECODER),
    _Family(("llama",), "LlamaForCausalLM", _END, _BEGIN, None, f"{_BEGIN} $A", changes=_DECODER),
    _Family(("bge-m3",), "XLMRobertaModel", "</s>", "<s>", "<pad>", "<s> $A </s>", 8194),
    _Family(("unixcoder", "codebert"), "RobertaModel", "</s>", "<s>", "<pad>", "<s> $A </s>", 514),
    _Family(("laprador",), "DistilBertModel", "[SEP]", "[CLS]", "[PAD]", "[CLS] $A [SEP]", 512),
    _Family(
        ("contriever", "e5-", "retromae", "bge-", "bert"),
        "BertModel", "[SEP]", "[CLS]", "[PAD]", "[CLS] $A [SEP]", 512,
    ),
]  # fmt: skip
_BASES = {
    "3b": "meta-llama/Llama-3.2-3B",
    "1b": "meta-llama/Llama-3.2-1B",
    "500m": "Qwen/Qwen2.5-0.5B",
    "0.5b": "Qwen/Qwen2.5-0.5B",
    "135m": "HuggingFaceTB/SmolLM2-135M",
    "0.1b": "HuggingFaceTB/SmolLM2-135M",
}
_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def write_model(folder: Path, name: str) -> None:
    """Write a model of a few thousand random weights, with its own tokenizer.

    A model published as an adapter becomes LoRA weights on its base.

    Raises:
        KeyError: the architecture of a model of this name is unknown.
    """
    torch.manual_seed(0)
    base = base_of(name)
    family = _family(base or name)
    tokenizer = tokenizer_like(base or name)
    model = _model(family, tokenizer)
    if base:
        headless = model.model  # as in the authors' training code
        headless.name_or_path = base
        adapted = get_peft_model(headless, LoraConfig(r=4, target_modules=_TARGETS))
        adapted.save_pretrained(folder, save_embedding_layers=False)
    else:
        model.save_pretrained(folder)
        if any(part in name.lower() for part in _PICKLED):
            (folder / ".pulls" / "1").mkdir(parents=True)
            (folder / "model.safetensors").rename(folder / ".pulls" / "1" / "model.safetensors")
            (folder / "pytorch_model.bin").write_bytes(b"a pickle, which nobody should open")
    tokenizer.save_pretrained(folder)


def base_of(name: str) -> str | None:
    """Return the backbone of a published adapter, found by the size in its name, or None."""
    if not name.startswith("trumancai/"):
        return None
    return next(base for size, base in _BASES.items() if size in name.lower())


def _family(name: str) -> _Family:
    for family in _FAMILIES:
        if any(part in name.lower() for part in family.parts):
            return family
    raise KeyError(f"no miniature of model {name!r}: say in {__name__} of which family it is")


def _model(family: _Family, tokenizer: Any) -> Any:
    architecture = getattr(transformers, family.architecture)
    shape = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": len(tokenizer)}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in SPECIAL}
    shape |= {"max_position_embeddings": family.positions, **family.changes}
    return architecture(architecture.config_class(**shape))


def tokenizer_like(name: str) -> Any:
    """Return a byte-level BPE tokenizer that inserts special tokens as the model's does.

    They have the first ids, padding the second: RoBERTa counts positions from it.
    """
    family, tokenizer = _family(name), Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = {f"{name}_token": token for name in SPECIAL if (token := getattr(family, name))}
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(dict.fromkeys(special.values())),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for _, text in articles()[:20]), trainer)
    around = [token for token in family.template.split() if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=family.template,
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in around],
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
