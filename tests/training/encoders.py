"""Sentence-transformers models of other architectures, with a few thousand random weights."""

from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer, models, pre_tokenizers, processors

KINDS = {
    # architecture, tokens around a text, pooling, width of a Dense layer, prompts
    "bert-mean": ("Bert", ("[CLS]", "[SEP]"), "mean", None, ("", "")),
    "bert-cls-dense": ("Bert", ("[CLS]", "[SEP]"), "cls", 12, ("", "")),
    "xlm-roberta-e5": ("XLMRoberta", ("<s>", "</s>"), "mean", None, ("query: ", "passage: ")),
    "modernbert-cls": ("ModernBert", ("[CLS]", "[SEP]"), "cls", None, ("", "")),
    "qwen3-last": ("Qwen3", ("", "<|endoftext|>"), "lasttoken", None, ("Instruct:\nQuery:", "")),
}


def write_encoder(folder: Path, name: str) -> Path:
    """Write a folder as sentence-transformers does."""
    kind, (begin, end), pooling, width, (query, document) = KINDS[name]
    bert = end == "[SEP]"
    tokenizer = _tokenizer(begin, end, "[PAD]" if bert else "<pad>")
    shape = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 64}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": len(tokenizer)}
    shape |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    if kind == "Qwen3":
        shape |= {"num_key_value_heads": 1, "head_dim": 8}
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**shape))
    model.save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    parts: list[Any] = [modules.Transformer(str(folder / "plain")), modules.Pooling(16, pooling)]
    parts += [modules.Dense(16, width)] if width else []
    encoder = SentenceTransformer(
        modules=[*parts, modules.Normalize()],
        prompts={"query": query, "document": document},
        similarity_fn_name="cosine",
        device="cpu",
    )
    encoder.save(str(folder / "encoder"), create_model_card=False)
    return folder / "encoder"


def _tokenizer(begin: str, end: str, pad: str) -> Any:
    """Return a tokenizer of bytes that puts tokens around a text; one of BERT's kind has no EOS."""
    bert = end == "[SEP]"
    special = [pad, "<unk>", *filter(None, (begin, end))]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    around = [(token, backend.token_to_id(token)) for token in special[2:]]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}".strip(), special_tokens=around
    )
    ends = {"cls_token": begin, "sep_token": end} if bert else {"eos_token": end}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=pad, unk_token="<unk>", model_max_length=60, **ends
    )
