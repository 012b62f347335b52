"""A small backbone from nothing: a BPE tokenizer and a Llama trained on corpora's chunks."""

from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import transformers

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.common.usage import spent
from revela.common.versions import STAGE_VERSIONS
from revela.config.steps import Backbone
from revela.encoder import devices, native_dtype
from revela.training.checkpoints import ResumableTrainer, load_weights, run, work_folder
from revela.training.trainlog import LOG, Progress, append_line, keep_freed_memory, memory_gb

EOS, PAD = "<|endoftext|>", "<|pad|>"
_TOKENIZER_CHARACTERS = 20_000_000  # enough text for a small vocabulary
_HELD_OUT_EVERY = 100  # documents
_HELD_OUT_WINDOWS = 400


def pretrain(settings: Backbone, chunks: list[Path], output: Path) -> None:
    """Pretrain a backbone on chunk files and write it to the folder `output`.

    Writes a stock Llama in safetensors, its tokenizer, `log.jsonl` and `manifest.json`. The
    weights are those of the checkpoint with the lowest loss on held-out documents, every hundredth
    of each corpus. Called again after an interruption it goes on from the last checkpoint.

    Raises:
        RevelaError: the corpora are shorter than one sequence, the folder cannot be written or is
            in use, or a signal stopped the pretraining (a checkpoint is saved).
    """
    with work_folder(output, settings.dump(), chunks) as work:
        keep_freed_memory()
        transformers.set_seed(settings.seed)
        if not (work / "tokens").exists():
            with outputs.atomic_output(work / "tokens") as folder:
                _tokenize(settings, chunks, folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(work / "tokens")
        length = settings.sequence_length
        training, held_out = (
            _Windows(work / "tokens" / name, length) for name in ("training", "held_out")
        )
        if not (len(training) and len(held_out)):
            files = ", ".join(map(str, chunks))
            raise RevelaError(f"{files}: too few tokens for sequences of {length}")
        # Whole steps only; nothing of the held-out windows is dropped.
        training.count -= training.count % min(training.count, settings.sequences_per_step)
        held_out.limit(_HELD_OUT_WINDOWS)
        trainer = ResumableTrainer(
            model=_new_model(settings, tokenizer),
            args=_arguments(settings, work),
            train_dataset=training,
            eval_dataset=held_out,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(Progress())
        trainer.add_callback(_Log(work / LOG, length * settings.sequences_per_step))
        run(trainer)
        model = trainer.model
        if trainer.state.best_model_checkpoint:
            load_weights(model, Path(trainer.state.best_model_checkpoint))
        if trainer.args.bf16:
            model.bfloat16()
        loss = trainer.evaluate()["eval_loss"]  # of the weights as they are saved
        with outputs.atomic_output(work / "model") as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        for file in (work / "model").iterdir():
            file.replace(output / file.name)
        outputs.write_text(output / LOG, (work / LOG).read_text())
        outputs.write_manifest(
            output,
            settings.model_dump(mode="json"),
            chunks,
            stage_version=STAGE_VERSIONS["pretrain"],
            device=str(trainer.args.device),
            precision="bfloat16" if trainer.args.bf16 else "float32",
            steps=trainer.state.global_step,
            parameters=model.num_parameters(),
            corpus_tokens=len(training) * length,
            token_passes=trainer.state.global_step * settings.sequences_per_step * length,
            held_out_tokens=len(held_out) * length,
            held_out_loss=round(loss, 4),
            best_checkpoint_step=trainer.state.best_global_step,
            **spent(work),
        )


def _new_model(settings: Backbone, tokenizer: Any) -> Any:
    return transformers.LlamaForCausalLM(
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


def _arguments(settings: Backbone, work: Path) -> transformers.TrainingArguments:
    device, dtype = torch.device(devices()[0]), native_dtype(settings.precision)
    steps = max(1, settings.tokens // (settings.sequence_length * settings.sequences_per_step))
    return transformers.TrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=settings.sequences_per_step,
        per_device_eval_batch_size=settings.sequences_per_step,
        max_steps=steps,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=min(settings.warmup_steps, steps // 2),
        weight_decay=0.1,
        adam_beta2=0.95,
        bf16=dtype == torch.bfloat16,
        torch_compile=settings.compile,
        use_cpu=device.type == "cpu",
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=settings.checkpoint_steps,
        save_steps=settings.checkpoint_steps,
        save_total_limit=2,
        metric_for_best_model="eval_loss",  # its checkpoint is never rotated away
        greater_is_better=False,
        prediction_loss_only=True,
        report_to=[],
        disable_tqdm=True,
        seed=settings.seed,
        dataloader_pin_memory=device.type == "cuda",
    )


# ---------------------------------------------------------------------------- tokens


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


def _in_turns(files: list[Path]) -> Iterator[str]:
    """Yield a document of each file in turn, until the longest ends."""
    for documents in zip_longest(*map(_documents, files)):
        yield from (document for document in documents if document is not None)


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


def _tokenize(settings: Backbone, chunks: list[Path], folder: Path) -> None:
    """Write the tokenizer, and all documents' ids in one row a split, an EOS after each.

    The rows go to disk, so that memory does not grow with the corpora.
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


class _Windows(torch.utils.data.Dataset):
    """Consecutive windows of one row of tokens on disk, without overlap."""

    def __init__(self, path: Path, length: int) -> None:
        size = path.stat().st_size // np.dtype(np.int32).itemsize
        self.count = size // length
        if self.count:
            tokens = np.memmap(path, np.int32, "r", shape=(size,))
            self.windows = tokens[: self.count * length].reshape(self.count, length)

    def limit(self, count: int) -> None:
        """Keep so many windows at most, evenly spread."""
        if self.count > count:
            self.windows = self.windows[:: self.count // count][:count]
            self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(self.windows[index].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


class _Log(transformers.TrainerCallback):
    """One JSON line a step, and one for each held-out loss."""

    def __init__(self, path: Path, tokens_per_step: int) -> None:
        self.path, self.tokens_per_step = path, tokens_per_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Write the line."""
        entry = {"step": state.global_step, "tokens": state.global_step * self.tokens_per_step}
        if "loss" in logs:
            entry |= {
                "loss": float(logs["loss"]),
                "learning_rate": logs["learning_rate"],
                "gradient_norm": float(logs["grad_norm"]),
                "memory_gb": round(memory_gb(), 3),
            }
        elif "eval_loss" in logs:
            entry["held_out_loss"] = float(logs["eval_loss"])
        else:
            return
        append_line(self.path, entry)
