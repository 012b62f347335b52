"""Twins of the paper's backbones: their `config.json`, vocabulary and token ids, random weights."""

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from revela.common.outputs import atomic_output

SHAPES = Path("data/paper/models.json")
BACKBONES = [
    "HuggingFaceTB/SmolLM2-135M",
    "Qwen/Qwen2.5-0.5B",
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B",
]
SHARD_BYTES = 1_000_000_000
_CHARACTERS = 80_000_000  # of text for learning merges
_ALPHABET = 256


def write_twin(folder: Path, name: str, merges: Path) -> None:
    """Write a folder that loads like the model of this name.

    Args:
        folder: folder to write, unless it exists.
        name: one of `BACKBONES`.
        merges: byte-pair merges for the largest vocabulary; learnt if the file does not exist.
    """
    if folder.exists():
        return
    if not merges.exists():
        largest = max(map(_learnt, shapes().values()))
        with atomic_output(merges) as temporary:
            temporary.write_text(json.dumps(_learn(largest)), encoding="utf-8")
    with atomic_output(folder) as temporary:
        temporary.mkdir()
        config = shapes()[name]
        (temporary / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        _tokenizer(config, json.loads(merges.read_text("utf-8"))).save_pretrained(temporary)
        write_weights(temporary, config)


def shapes() -> dict[str, dict[str, Any]]:
    """Return the `config.json` of each backbone."""
    known = json.loads(SHAPES.read_text(encoding="utf-8"))
    return {name: known[name]["config"] for name in BACKBONES}


# ---------------------------------------------------------------------------- weights


def write_weights(folder: Path, config: dict[str, Any], shard_bytes: int = SHARD_BYTES) -> None:
    """Write random weights in bfloat16, with one shard in memory at a time."""
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.manual_seed(0)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**config)
        )
    sizes = {name: list(weight.shape) for name, weight in model.named_parameters()}  # tied: once
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, size in sizes.items():
        needed = 2 * torch.Size(size).numel()
        if shards[-1] and needed > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= needed
    index: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {name: torch.empty(sizes[name], dtype=torch.bfloat16) for name in names}
        for name, tensor in tensors.items():
            if name.endswith("norm.weight"):
                tensor.fill_(1)
            else:
                tensor.normal_(std=config["initializer_range"])
        save_file(tensors, folder / file, {"format": "pt"})
        index |= dict.fromkeys(names, file)
    total = sum(2 * torch.Size(size).numel() for size in sizes.values())
    described = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(described), encoding="utf-8")


# ---------------------------------------------------------------------------- tokenizers


def _learnt(config: dict[str, Any]) -> int:
    """Return the number of ordinary tokens of a vocabulary; special ones are first or last."""
    ids = _special_ids(config)
    return ids[0] or config["vocab_size"] - len(ids)


def _special_ids(config: dict[str, Any]) -> list[int]:
    """Return the ids of BOS and EOS, a single one if both are the same."""
    return sorted({config["bos_token_id"], config["eos_token_id"]})


def _learn(vocabulary: int) -> list[tuple[str, str]]:
    """Learn byte-pair merges for a vocabulary of this size from installed packages."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_text(), trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    if len(merges) < vocabulary - _ALPHABET:
        raise ValueError(f"{len(merges)} merges are too few for a vocabulary of {vocabulary}")
    return merges


def _text() -> Iterator[str]:
    size = 0
    for path in sorted(Path(sysconfig.get_path("purelib")).rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        size += len(text)
        if size > _CHARACTERS:
            return
        yield text


def _tokenizer(config: dict[str, Any], merges: list[tuple[str, str]]) -> Any:
    """Return a byte-level BPE tokenizer whose special tokens have the real ids.

    A BOS that differs from the EOS is prepended to each text, as in Llama's tokenizer.
    """
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    ids, learnt = _special_ids(config), _learnt(config)
    names = ["<|begin_of_text|>", "<|end_of_text|>"] if len(ids) == 2 else ["<|endoftext|>"]
    kept = merges[: learnt - _ALPHABET]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in kept)]
    first = len(names) if ids[0] == 0 else 0
    vocabulary = {token: number for number, token in enumerate(tokens, start=first)}
    vocabulary |= dict(zip(names, ids, strict=True))
    tokenizer = Tokenizer(models.BPE(vocabulary, list(map(tuple, kept))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    if len(names) == 2:
        begin = (names[0], ids[0])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin[0]} $A", special_tokens=[begin]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=names[0], eos_token=names[-1]
    )
