"""Pretrains a small backbone: a BPE tokenizer and a Llama, trained on the chunks of corpora."""

from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.config.training import Backbone
from revela.text.chunking import read_documents_again
from revela.training.base import BaseTrainer, finish, start, training_arguments

EOS, PAD = "<|endoftext|>", "<|pad|>"
_TOKENIZER_CHARACTERS = 20_000_000  # enough text for a small vocabulary
_HELD_OUT_EVERY = 100  # documents
_WRITTEN = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_HELD_OUT = 400  # windows at most


def pretrain(
    settings: Backbone, chunks: list[Path], output: Path, use_compile: bool = False
) -> None:
    """Pretrain a backbone on chunk files and write it to the folder `output`.

    Writes a stock Llama in safetensors, its tokenizer, `log.jsonl` and `manifest.json`. The weights
    are those of the checkpoint with the lowest loss on held-out documents (every hundredth of each
    corpus). After an interruption, another call resumes from the last checkpoint. `use_compile`
    compiles the model by torch, which changes the result by rounding only.

    Raises:
        RevelaError: the corpora are shorter than one step, or as `trainer.train`.
    """
    length, rows = settings.sequence_length, settings.sequences_per_step
    steps = max(1, settings.tokens // (length * rows))
    with start(output, settings, chunks, _WRITTEN) as work:
        arguments = training_arguments(
            settings,
            work,
            rows,
            max_steps=steps,
            lr_scheduler_type="cosine",
            warmup_steps=min(settings.warmup_steps, steps // 2),
            weight_decay=0.1,
            adam_beta2=0.95,
            torch_compile=use_compile,
            eval_strategy="steps",
            eval_steps=settings.checkpoint_steps,
            save_steps=settings.checkpoint_steps,
            metric_for_best_model="eval_loss",  # the best checkpoint is never deleted
            greater_is_better=False,
            prediction_loss_only=True,
        )
        with arguments.main_process_first(local=False):
            if not (work / "tokens").exists():
                with outputs.atomic_output(work / "tokens") as folder:
                    _tokenize(settings, chunks, folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(work / "tokens")
        training = _windows(work / "tokens/training", length)
        held_out = _windows(work / "tokens/held_out", length)
        held_out = held_out[:: max(1, len(held_out) // _HELD_OUT)][:_HELD_OUT]
        files = ", ".join(map(str, chunks))
        if len(training) < rows or not len(held_out):
            raise RevelaError(f"{files}: too few tokens for {rows} sequences of {length}")
        # Complete batches only: the Trainer's mean loss would depend on the number of processes.
        trainer = _Pretrainer(
            model=transformers.LlamaForCausalLM(_shape(settings, tokenizer)),
            args=arguments,
            train_dataset=training[: len(training) // rows * rows],
            eval_dataset=held_out[: len(held_out) // rows * rows or None],
            data_collator=_collate,
        )
        trainer.run()
        model = trainer.model
        if trainer.state.best_model_checkpoint:
            trainer._load_from_checkpoint(trainer.state.best_model_checkpoint)
        if arguments.bf16:
            model.bfloat16()
        loss = trainer.evaluate()["eval_loss"]  # of the saved weights
        if trainer.is_world_process_zero():
            with outputs.atomic_output(work / "model") as folder:
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
            for file in (work / "model").iterdir():
                outputs.replace(file, output / file.name)
            facts = {
                "parameters": model.num_parameters(),
                "corpus_tokens": len(trainer.train_dataset) * length,
                "token_passes": trainer.state.global_step * rows * length,
                "held_out_tokens": len(trainer.eval_dataset) * length,
                "held_out_loss": round(loss, 4),
                "best_checkpoint_step": trainer.state.best_global_step,
            }
            finish(output, work, settings, chunks, trainer.facts() | facts)


def _shape(settings: Backbone, tokenizer: Any) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
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


class _Pretrainer(BaseTrainer):
    """A trainer that logs the tokens seen and held-out losses."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a step or a held-out loss."""
        step, tokens = self.state.global_step, self.rows_per_step * self.train_dataset.shape[1]
        if "eval_loss" in logs:
            held_out = logs["eval_loss"]
            self.write_line({"step": step, "tokens": step * tokens, "held_out_loss": held_out})
        elif "loss" in logs:
            self.log_step(logs, tokens, tokens=step * tokens, loss=logs["loss"])


def _collate(windows: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """Return ids (B, L), also as labels: the model shifts them."""
    ids = torch.from_numpy(np.stack(windows).astype(np.int64))
    return {"input_ids": ids, "labels": ids}


def train_tokenizer(texts: Iterator[str], vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer; it adds no BOS and has an EOS and a padding token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # Digits are separate tokens, and runs of spaces are tokens: the text may be code.
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
    tokenizer.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, padding_side="right"
    )


def _in_turns(files: list[Path]) -> Iterator[str]:
    """Yield a document from each file in turn, until the longest ends or there is enough text."""
    size = 0
    for document in chain.from_iterable(zip_longest(*map(_documents, files), fillvalue="")):
        yield document
        size += len(document)
        if size > _TOKENIZER_CHARACTERS:
            return


def _documents(chunks: Path) -> Iterator[str]:
    """Yield the documents of a chunk file, their chunks joined by line breaks."""
    return ("\n".join(texts) for _, texts in read_documents_again(chunks))


def _tokenize(settings: Backbone, chunks: list[Path], folder: Path) -> None:
    """Write the tokenizer, and the ids of all documents as one row per split, an EOS after each.

    The rows are on disk, so that memory does not grow with the corpora.
    """
    print("training the tokenizer", flush=True)
    tokenizer = train_tokenizer(_in_turns(chunks), settings.vocabulary)
    tokenizer.save_pretrained(folder)
    print("tokenizing", flush=True)
    with (folder / "training").open("wb") as training, (folder / "held_out").open("wb") as held:
        for file in chunks:
            documents = _documents(file)
            number = 0
            while some := list(islice(documents, 256)):
                for ids in tokenizer(some)["input_ids"]:
                    stream = training if number % _HELD_OUT_EVERY else held
                    np.array([*ids, tokenizer.eos_token_id], np.int32).tofile(stream)
                    number += 1
            if number == 1:
                raise RevelaError(
                    f"{file}: has one document, but one in {_HELD_OUT_EVERY} is held out"
                )


def _windows(path: Path, length: int) -> np.ndarray:
    """Return the consecutive windows (N, L) of a row of tokens on disk, without overlap."""
    count = path.stat().st_size // (np.dtype(np.int32).itemsize * length)
    if not count:
        return np.empty((0, length), np.int32)
    return np.memmap(path, np.int32, "r", shape=(count, length))
