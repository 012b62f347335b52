"""Training a retriever: one entry point for all objectives."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed
from transformers.trainer_pt_utils import get_model_param_count

from revela.common import outputs
from revela.common.errors import RevelaError, reading
from revela.common.memory import keep_freed_memory, return_freed_memory
from revela.common.versions import STAGE_VERSIONS
from revela.config.training import Experiment
from revela.inbatch.decoder import causal_lm
from revela.inbatch.joint import joint_lm
from revela.retriever.card import make_card
from revela.retriever.encode import (
    devices,
    native_dtype,
    positions,
    prepare_for_ragged_batches,
    prompt_tokens,
)
from revela.retriever.load import (
    load_language_model,
    load_model,
    load_tokenizer,
    read_encoder,
)
from revela.retriever.lora import add_lora, continue_lora
from revela.retriever.save import check_folder, limit_length, save_encoder
from revela.retriever.source import Source
from revela.retriever.tokenizer import check_vocabulary
from revela.training.at_once import rows_at_once
from revela.training.callbacks import AtSteps, record_similarities, save_model, start_weights
from revela.training.checkpoints import work_folder
from revela.training.collators import BatchCollator, PairCollator, load_batches, load_pairs
from revela.training.fused import fuse, without_casts
from revela.training.loop import Trainer, training_arguments
from revela.training.objectives.contriever import Contriever
from revela.training.objectives.replug import Replug
from revela.training.objectives.revela import Revela
from revela.training.trainlog import LOG

MADE = ("retriever", "language_model", "steps")
"""Folders written by a training."""

_OBJECTIVES: Any = {"revela": Revela, "replug": Replug, "contriever": Contriever}


def train(
    experiment: Experiment,
    data: Path,
    output: Path,
    checkpoint_minutes: float = 15,
    zero_stage: int = 0,
    batches_per_forward: int = 0,
    gradient_checkpointing: bool | None = None,
    loader_workers: int = 2,
) -> None:
    """Train a retriever on a file of batches or pairs and write it to a folder.

    The arguments are the options of `revela train`. The processes of a launcher train together: a
    step has the same batches and dropout on any number of processes, so that their number changes
    the result by rounding only.

    Writes `retriever/` (a sentence-transformers model), `language_model/` if one is trained,
    `log.jsonl` (one line per step) and `manifest.json`. Another call with the same settings and
    data resumes from the last checkpoint in `output/checkpoints/`.

    Raises:
        RevelaError: a model cannot be loaded, the loss is not finite, the folder cannot be
            written or is in use, a signal stopped the training (a checkpoint is saved), or
            sentence-transformers encodes differently (the weights are in `retriever-unchecked/`).
    """
    names = filter(None, (experiment.retriever, experiment.language_model))
    sources = [Source(str(name)) for name in names]
    inputs = [data, *dict.fromkeys(f for source in sources for f in source.folders())]
    if output.resolve() in [path.resolve() for path in inputs]:
        raise RevelaError(f"--output {output}: is a model that this training starts from")
    workers = loader_workers if devices()[0] != "cpu" else 0
    if workers:  # which are forked: they would wait for threads of tokenizers in this process
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    written = (*MADE, "retriever-unchecked", LOG, "manifest.json")
    with work_folder(output, experiment.dump(), inputs, written) as work:
        keep_freed_memory()
        prepare_for_ragged_batches()
        set_seed(experiment.seed)
        _name_run(output, work)
        rows = _rows(experiment, data)
        at_once, recomputed = rows_at_once(
            experiment, rows[0], batches_per_forward, gradient_checkpointing
        )
        # Before the models: ZeRO-3 shards weights while they are loaded.
        arguments = training_arguments(experiment, work, at_once, zero_stage, workers)
        unchecked, final = output / "retriever-unchecked", output / "retriever"
        facts = _fit(experiment, arguments, rows, output, checkpoint_minutes, recomputed)
        return_freed_memory()  # the check needs that of the models
        if facts is None:
            return
        check_folder(unchecked)
        outputs.replace(unchecked, final)
        files = [file for folder in MADE for file in (output / folder).rglob("[!.]*")]
        facts["files"] = sorted(str(file.relative_to(output)) for file in files if file.is_file())
        facts["commits"] = {k: v for source in sources for k, v in source.commits().items()}
        facts["stage_version"] = STAGE_VERSIONS["train"]
        outputs.write_text(output / LOG, (work / LOG).read_text())
        outputs.write_manifest(output, experiment.model_dump(mode="json"), inputs, **facts)
        outputs.write_text(final / "README.md", make_card(final, str(final)) or "")


def _name_run(output: Path, work: Path) -> None:
    """Name this run for trackers: as settings they would make it a different training."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(output / "tensorboard")
    run = {"NAME": output.name, "RUN_ID": f"{output.name}-{work.name}", "RESUME": "allow"}
    for key, value in (run | {"DIR": str(output), "PROJECT": "revela"}).items():
        os.environ.setdefault(f"WANDB_{key}", value)


def _rows(experiment: Experiment, data: Path) -> Any:
    """Return the rows of a batch or pair file; there must be enough for the schedule."""
    if experiment.objective.on_pairs:
        rows = load_pairs(data)
        if experiment.batches_per_device == 1 and not rows[0]["negatives"]:
            raise RevelaError(
                f"{data}: has no negatives, so batches_per_device must be above 1 for in-batch "
                "negatives"
            )
    else:
        rows = load_batches(data)
    reads_documents = getattr(experiment.objective, "similarity", None) == "documents"
    if reads_documents and not any(rows[0].get("documents") or ()):
        raise RevelaError(
            f"{data}: its chunks have no document ids, which similarity: documents needs"
        )
    if len(rows) < experiment.batches_per_step:
        raise RevelaError(
            f"{data}: {len(rows)} rows are not enough for one step "
            f"(batches_per_step {experiment.batches_per_step})"
        )
    with reading(data, "data for this schedule"):
        experiment.check_steps(experiment.steps or len(rows) // experiment.batches_per_step)
    return rows


def _fit(
    experiment: Experiment,
    arguments: Any,
    rows: Any,
    output: Path,
    checkpoint_minutes: float,
    gradient_checkpointing: bool,
) -> dict[str, Any] | None:
    """Train and save the models; return facts for the manifest in one process."""
    module, collate = _build(experiment, bool(arguments.deepspeed), gradient_checkpointing)
    trainer = Trainer(
        experiment, model=module, args=arguments, data_collator=collate, train_dataset=rows
    )
    retriever, writes = module.retriever, trainer.is_world_process_zero()
    share = experiment.average_with_start
    start = start_weights(retriever) if share else None

    def save(path: Path) -> None:
        write = functools.partial(save_encoder, retriever)
        save_model(retriever, path, writes, write, start, share)

    snapshots = experiment.similarity_snapshot_steps if isinstance(module, Revela) else []
    trainer.add_callback(
        AtSteps(
            (experiment.save_retriever_steps, lambda step: save(output / f"steps/{step}")),
            (snapshots, lambda step: record_similarities(trainer, step)),
        )
    )
    trainer.run(checkpoint_minutes)
    save(output / "retriever-unchecked")
    if experiment.objective.trains_language_model:
        model, tokenizer = module.language_model, collate.language_model_tokenizer

        def write(folder: Path, state: dict[str, torch.Tensor]) -> None:
            model.save_pretrained(folder, state_dict=state)
            tokenizer.save_pretrained(folder)

        save_model(model, output / "language_model", writes, write)
    trained = {
        "gradient_checkpointing": gradient_checkpointing,
        "rows_per_forward": arguments.per_device_train_batch_size,  # which share dropout's seed
        "trainable_parameters": get_model_param_count(module, trainable_only=True),
    }
    return trainer.facts() | trained if writes else None


def _build(experiment: Experiment, sharded: bool, gradient_checkpointing: bool) -> tuple[Any, Any]:
    """Load the models of an experiment and return its objective and its collator."""
    dtype = native_dtype(experiment.precision)
    # Frozen weights may be in half precision; trained ones stay in float32 under autocast.
    weights = dtype if experiment.lora else torch.float32

    def load(source: Source, load: Callable[[Source], Any], trained: bool = True) -> Any:
        # An adapter is trained further: a second one would be saved without it.
        base = source.base if experiment.lora and trained else None
        model = load(base or source)
        if (limit := positions(model)) < experiment.max_length:
            raise RevelaError(f"model {source.name!r} has {limit} positions; reduce max_length")
        if gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        if experiment.lora and trained:
            if base:
                model = continue_lora(model, source, experiment.lora)
            else:
                model = add_lora(model, experiment.lora, experiment.seed, source.revision)
        without_casts(model)
        if not sharded:
            if devices()[0] != "cpu":
                fuse(model)
        elif experiment.lora and trained:  # no autocast: float32 adapters would compute in float32
            for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
                weight.data = weight.data.to(dtype)
        return model

    source, objective = Source(experiment.retriever), experiment.objective
    if experiment.average_with_start and experiment.lora and source.base:
        raise RevelaError(
            f"average_with_start: {experiment.average_with_start} needs a new adapter, but "
            f"{source.name!r} is one to train further: `revela export` it and start from the result"
        )
    retriever = read_encoder(
        source,
        experiment.encoding,
        lambda kind: load(source, lambda one: load_model(one, kind, weights)),
    )
    if experiment.lora:  # an adapter file has no weights of other modules, such as a Dense layer
        for module in list(retriever)[1:]:
            module.requires_grad_(False)
    check_vocabulary(source.name, retriever)
    if any(prompt_tokens(retriever, role) for role in ("query", "passage")):
        raise RevelaError(f"model {source.name!r}: its pooling excludes prompts: set them to ''")
    limit_length(retriever, experiment.max_length)
    # The collator tokenizes in other processes, which need no weights.
    tokenizing = read_encoder(source, experiment.encoding)
    kind = _OBJECTIVES[objective.name]
    if objective.on_pairs:
        return kind(retriever, objective), PairCollator(experiment, tokenizing)
    reads = Source(str(experiment.language_model))
    collate = BatchCollator(experiment, tokenizing, load_tokenizer(reads))
    language_model = load(
        reads, lambda one: load_language_model(one, weights), objective.trains_language_model
    )
    joint = objective.name == "revela" and objective.reading == "joint"
    what = "reading: joint" if joint else objective.title
    with reading(reads.name, f"a language model for {what}"):
        (joint_lm if joint else causal_lm)(language_model, experiment.max_length)
    return kind(retriever, language_model, objective), collate
