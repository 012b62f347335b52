"""A small backbone from nothing: a BPE tokenizer and a Llama trained on a corpus's chunks."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import transformers

from revela import outputs
from revela.config import Backbone
from revela.encoder import device_and_dtype
from revela.errors import RevelaError
from revela.training import LOG, Progress, append_line, keep_freed_memory, memory_gb

EOS, PAD = "<|endoftext|>", "<|pad|>"
_TOKENIZER_CHARACTERS = 20_000_000  # enough text for a small vocabulary


def pretrain(settings: Backbone, chunks: Path, output: Path) -> None:
    """Pretrain a backbone on a chunk file and write it to the folder `output`.

    Writes a stock Llama in safetensors, its tokenizer, `log.jsonl` and `manifest.json`.

    Raises:
        RevelaError: the corpus is shorter than one sequence.
    """
    keep_freed_memory()
    transformers.set_seed(settings.seed)
    tokenizer = train_tokenizer(_documents(chunks), settings.vocabulary)
    tokens = _tokenize(tokenizer, chunks)
    length = settings.sequence_length
    held_out = max(length, len(tokens) // 100)
    if len(tokens) < held_out + length:
        raise RevelaError(f"{chunks}: {len(tokens)} tokens are too few for sequences of {length}")
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    device, dtype = device_and_dtype(settings.precision)
    steps = max(1, settings.tokens // (length * settings.sequences_per_step))
    with outputs.whole(output) as folder:
        folder.mkdir()
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=str(folder / "work"),
                per_device_train_batch_size=settings.sequences_per_step,
                max_steps=steps,
                learning_rate=settings.learning_rate,
                lr_scheduler_type="cosine",
                warmup_steps=min(settings.warmup_steps, steps // 2),
                weight_decay=0.1,
                adam_beta2=0.95,
                bf16=dtype == torch.bfloat16,
                use_cpu=device.type == "cpu",
                logging_steps=10,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                seed=settings.seed,
                dataloader_pin_memory=device.type == "cuda",
            ),
            train_dataset=_Windows(tokens[:-held_out], length),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(Progress())
        trainer.add_callback(_Log(folder / LOG))
        result = trainer.train()
        loss = _held_out_loss(model, tokens[-held_out:], length, device)
        model.float().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "training_args.bin").unlink(missing_ok=True)
    outputs.write_manifest(
        output,
        settings.model_dump(mode="json"),
        [chunks],
        device=str(device),
        precision=str(dtype).removeprefix("torch."),
        steps=steps,
        parameters=model.num_parameters(),
        corpus_tokens=len(tokens),
        tokens_per_second=round(
            steps * length * settings.sequences_per_step / result.metrics["train_runtime"], 1
        ),
        held_out_loss=round(loss, 4),
    )


def train_tokenizer(texts: Iterator[str], vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer; it adds no BOS and knows an EOS and a padding token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # Digits apart and runs of spaces together: the text may be code.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_limited(texts), trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, padding_side="right"
    )


def _limited(texts: Iterator[str]) -> Iterator[str]:
    size = 0
    for text in texts:
        yield text
        size += len(text)
        if size > _TOKENIZER_CHARACTERS:
            return


def _documents(chunks: Path) -> Iterator[str]:
    """Yield documents again: the chunks of each, joined by line breaks."""
    current: str | None = None
    texts: list[str] = []
    for rows in pq.ParquetFile(chunks).iter_batches(8192, columns=["document", "text"]):
        for document, text in zip(*(column.to_pylist() for column in rows), strict=True):
            if document != current and texts:
                yield "\n".join(texts)
                texts = []
            current = document
            texts.append(text)
    if texts:
        yield "\n".join(texts)


def _tokenize(tokenizer: Any, chunks: Path) -> np.ndarray:
    """Return all documents' ids in one row, an EOS after each."""
    parts = []
    documents = _documents(chunks)
    while some := list(islice(documents, 256)):
        for ids in tokenizer(some)["input_ids"]:
            parts.append(np.array([*ids, tokenizer.eos_token_id], np.int32))
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


class _Windows(torch.utils.data.Dataset):
    """Consecutive windows of one row of tokens, without overlap."""

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.tokens[index * self.length : (index + 1) * self.length]
        ids = torch.from_numpy(window.astype(np.int64))
        return {"input_ids": ids, "labels": ids}


@torch.no_grad()
def _held_out_loss(model: Any, tokens: np.ndarray, length: int, device: torch.device) -> float:
    """Return the mean next-token loss on the last hundredth of the corpus."""
    model.eval()
    windows = _Windows(tokens, length)
    losses = []
    for index in range(min(len(windows), 200)):
        ids = windows[index]["input_ids"][None].to(device)
        losses.append(float(model(input_ids=ids, labels=ids).loss))
    return sum(losses) / len(losses)


class _Log(transformers.TrainerCallback):
    """One JSON line every ten steps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Write the line."""
        if "loss" in logs:
            entry = {"step": state.global_step, **logs, "memory_gb": round(memory_gb(), 3)}
            append_line(self.path, entry)
