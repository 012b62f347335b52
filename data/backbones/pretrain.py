"""Pretrains a backbone as those beside this file were: a BPE tokenizer and a small Llama.

Its text is chunk files, made by `revela chunk` from the corpora of corpora.yaml. From the root of
the repository:

    snakemake --cores 2 --configfile data/backbones/corpora.yaml --replace-workflow-config \\
        results/chunks/{code,models,books,{python,cpp,windows,model}-documentation}.parquet
    python data/backbones/pretrain.py results/chunks/*.parquet --output new-5m

`5m-9m-tokens` adds `--tokens 9_000_000`; `1m` has `--hidden 128 --intermediate 352 --layers 2
--heads 2 --tokens 10_000_000`, and `1m-3m-tokens` the same with `--tokens 3_000_000`. A second call
resumes from the last checkpoint. The weights are those with the lowest loss on held-out documents.
"""

import argparse
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.trainer_utils import get_last_checkpoint

EOS, PAD = "<|endoftext|>", "<|pad|>"
TOKENIZER_DOCUMENTS = 20_000
HELD_OUT_WINDOWS = 400  # at most


def main() -> None:
    """Train the tokenizer and the model, and save both."""
    parser = argparse.ArgumentParser(description="Pretrain a small Llama on chunk files.")
    parser.add_argument("chunks", type=Path, nargs="+", help="Parquet files of `revela chunk`")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=704)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=256, help="tokens in a window")
    parser.add_argument("--windows", type=int, default=32, help="windows in a step")
    parser.add_argument("--tokens", type=int, default=45_000_000, help="repetitions included")
    parser.add_argument("--warmup", type=int, default=200, help="steps")
    parser.add_argument("--every", type=int, default=250, help="steps between held-out losses")
    parser.add_argument("--compile", action="store_true", help="by torch: faster after minutes")
    options = parser.parse_args()

    texts = documents(options.chunks).train_test_split(test_size=0.01, seed=0)
    sample = texts["train"].select(range(min(TOKENIZER_DOCUMENTS, len(texts["train"]))))
    tokenizer = train_tokenizer(sample["text"], options.vocabulary)

    def windows(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        tokens = ([*ids, tokenizer.eos_token_id] for ids in tokenizer(batch["text"])["input_ids"])
        row = list(chain.from_iterable(tokens))
        starts = range(0, len(row) - options.length + 1, options.length)
        return {"input_ids": [row[start : start + options.length] for start in starts]}

    data = texts.map(windows, batched=True, remove_columns=["text"])
    held_out = data["test"].select(range(min(HELD_OUT_WINDOWS, len(data["test"]))))
    shape = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    work = options.output / "checkpoints"
    transformers.set_seed(0)
    trainer = transformers.Trainer(
        model=transformers.LlamaForCausalLM(shape),
        args=transformers.TrainingArguments(
            output_dir=str(work),
            per_device_train_batch_size=options.windows,
            per_device_eval_batch_size=options.windows,
            max_steps=max(1, options.tokens // (options.windows * options.length)),
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=options.warmup,
            weight_decay=0.1,
            adam_beta2=0.95,
            bf16=True,
            use_cpu=not torch.cuda.is_available(),
            torch_compile=options.compile,
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=options.every,
            save_steps=options.every,
            save_total_limit=2,
            load_best_model_at_end=True,
            report_to=[],
        ),
        train_dataset=data["train"],
        eval_dataset=held_out,
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(work) if work.exists() else None)
    print(trainer.evaluate())
    trainer.model.bfloat16().save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    trainer.state.save_to_json(str(options.output / "trainer_state.json"))


def documents(files: list[Path]) -> datasets.Dataset:
    """Return the documents of chunk files in random order, their chunks joined by line breaks."""
    chunks = (pd.read_parquet(file, columns=["document", "text"]) for file in files)
    texts = [frame.groupby("document", sort=False)["text"].agg("\n".join) for frame in chunks]
    return datasets.Dataset.from_dict({"text": pd.concat(texts).tolist()}).shuffle(seed=0)


def train_tokenizer(texts: Any, vocabulary: int) -> transformers.PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer; it adds no BOS and has an EOS and a padding token."""
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
    )
    tokenizer.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, padding_side="right"
    )


if __name__ == "__main__":
    main()
