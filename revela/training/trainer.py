"""Training a retriever: one entry point for the three objectives."""

import random
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_pt_utils import get_model_param_count

from revela.common.errors import RevelaError, reading
from revela.config.steps import Experiment
from revela.encoder import Encoder, add_lora, load_model, load_tokenizer, native_dtype
from revela.training.base import BaseTrainer, start, training_arguments
from revela.training.callbacks import AtSteps, record_similarities, save_model
from revela.training.collators import BatchCollator, PairCollator, load_rows
from revela.training.objectives.contriever import Contriever
from revela.training.objectives.replug import Replug
from revela.training.objectives.revela import Revela
from revela.training.schedule import warmup_decay

MADE = ("retriever", "language_model", "steps")
"""Folders that a training writes."""


def train(
    experiment: Experiment,
    data: Path,
    output: Path,
    checkpoint_minutes: float = 15,
    zero_stage: int = 0,
) -> None:
    """Train a retriever on a batch file, for Contriever a pair file, and write it to a folder.

    The processes that a launcher started train together. A step has the same batches, dropout
    included, on any number of them, so that they change the result by rounding only.

    Writes `retriever/` (adapter or weights in safetensors, tokenizer), `language_model/` where one
    is trained, `log.jsonl` (one line a step) and `manifest.json`. While it runs, checkpoints are
    in `output/checkpoints/`, in a folder of these settings and data, `checkpoint_minutes` apart at
    most: another call resumes from the last one. `zero_stage` is DeepSpeed's, 2 or 3; 0 is DDP.

    Raises:
        RevelaError: a model cannot be loaded, the loss is not finite, the folder cannot be
            written or is in use, or a signal stopped the training (a checkpoint is saved).
    """
    folders = [Path(name) for name in (experiment.retriever, experiment.language_model) if name]
    inputs = [data, *(folder for folder in dict.fromkeys(folders) if folder.is_dir())]
    with start(output, experiment, inputs) as work:
        # Before the models: ZeRO-3 shards weights where they are loaded.
        arguments = training_arguments(
            experiment,
            work,
            experiment.batches_per_step,
            experiment.batches_per_device,
            zero_stage,
            max_steps=experiment.steps or -1,
            num_train_epochs=1,
            weight_decay=experiment.weight_decay,
            max_grad_norm=experiment.max_gradient_norm,
            save_total_limit=experiment.checkpoints_kept,
            label_names=[],
            average_tokens_across_devices=False,
        )
        on_pairs = experiment.objective.on_pairs
        rows = load_rows(data, ("query", "positive") if on_pairs else ("source", "texts"))
        if len(rows) < experiment.batches_per_step:
            raise RevelaError(
                f"{data}: {len(rows)} rows are fewer than the {experiment.batches_per_step} of one "
                "step (batches_per_step)"
            )
        with reading(data, "enough for this schedule"):
            experiment.check_steps(experiment.steps or len(rows) // experiment.batches_per_step)
        module, collate = _build(experiment, zero_stage)
        trainer = _Trainer(
            experiment, model=module, args=arguments, data_collator=collate, train_dataset=rows
        )
        retriever, writes = module.retriever, trainer.is_world_process_zero()

        def save(path: Path) -> None:
            save_model(retriever.model, retriever.tokenizer, path, writes)

        snapshots = experiment.similarity_snapshot_steps if isinstance(module, Revela) else []
        trainer.add_callback(
            AtSteps(
                (experiment.save_retriever_steps, lambda step: save(output / f"steps/{step}")),
                (snapshots, lambda step: record_similarities(trainer, step)),
            )
        )
        trainer.run(checkpoint_minutes)
        save(output / "retriever")
        if isinstance(module, Revela) and not module.settings.freeze_language_model:
            tokenizer = load_tokenizer(str(experiment.language_model))
            save_model(module.language_model, tokenizer, output / "language_model", writes)
        trained = get_model_param_count(module, trainable_only=True)
        made = [file for folder in MADE for file in (output / folder).rglob("*") if file.is_file()]
        files = sorted(str(file.relative_to(output)) for file in made)
        trainer.finish(output, experiment, inputs, trainable_parameters=trained, files=files)


def _build(experiment: Experiment, zero_stage: int) -> tuple[Any, Any]:
    """Load the models of an experiment and return its objective and its collator."""
    dtype = native_dtype(experiment.precision)
    # Frozen weights can be half precision; trained ones stay in float32 under autocast.
    weights = dtype if experiment.lora else torch.float32

    def load(name: str, causal: bool, trained: bool = True) -> Any:
        model = load_model(name, causal=causal, dtype=weights)
        if experiment.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        if not (experiment.lora and trained):
            return model
        model = add_lora(model, experiment.lora, experiment.seed)
        if zero_stage:  # no autocast: float32 adapters would be computed in float32
            for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
                weight.data = weight.data.to(dtype)
        return model

    tokenizer = load_tokenizer(experiment.retriever)
    retriever = Encoder(load(experiment.retriever, False), tokenizer, experiment.encoding)
    objective = experiment.objective
    if objective.name == "contriever":
        return Contriever(retriever, objective), PairCollator(experiment, tokenizer)
    name = str(experiment.language_model)
    collate = BatchCollator(experiment, tokenizer, load_tokenizer(name))
    if objective.name == "replug":
        return Replug(retriever, load(name, True, trained=False), objective), collate
    return Revela(retriever, load(name, True), objective), collate


class _Trainer(BaseTrainer):
    """Trains an objective, each batch with dropout of its own, and logs what it measures."""

    def __init__(self, experiment: Experiment, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.model_accepts_loss_kwargs = False  # each micro-batch's mean counts alike
        self.experiment = experiment
        self.measures: list[dict[str, torch.Tensor]] = []  # of each forward pass of this step
        self.plain: torch.Tensor | None = None

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of the learning rate."""
        kind, warmup = self.experiment.warmup, self.experiment.warmup_steps
        if isinstance(warmup, float):
            warmup = round(warmup * num_training_steps)
        optimizer = optimizer or self.optimizer
        self.lr_scheduler: Any = warmup_decay(optimizer, kind, warmup, num_training_steps)
        return self.lr_scheduler

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **_: Any
    ) -> Any:
        """Return the objective's loss and keep its measures for the log."""
        # Dropout is seeded by a batch's place in its step, in whatever process it is.
        place = len(self.measures) * self.args.world_size + self.args.process_index
        key = f"{self.experiment.seed} {self.state.global_step} {place}"
        torch.manual_seed(random.Random(key).getrandbits(63))
        result = model(**inputs)
        loss = result["loss"].detach()
        tokens = sum(tensor.sum() for name, tensor in inputs.items() if name.endswith("_mask"))
        every = getattr(self.experiment.objective, "plain_loss_every", 0)
        if every and self.state.global_step % every == 0 and not self.measures:
            names = ("language_model_ids", "language_model_mask")
            devices = [self.args.device] if self.args.device.type == "cuda" else []
            # A measure must not change the training: dropout draws from a copy of the state.
            with self.accelerator.autocast(), torch.random.fork_rng(devices):
                plain = self.model.plain_loss(*map(inputs.get, names))
            if getattr(self.experiment.objective, "language_model_loss", False):
                loss = loss - plain  # the e rows' loss is in it
            # Both on the same chunks: their difference is what in-batch attention gives.
            self.plain = torch.stack([plain, loss])
        self.measures.append(
            {"tokens": tokens, "loss": result["loss"].detach(), **result["measures"]}
        )
        return result["loss"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log one step: the means of all processes, in one transfer from the device."""
        if "loss" not in logs or not self.measures:
            return
        rows = [torch.stack([value.float() for value in m.values()]) for m in self.measures]
        means = self.accelerator.reduce(torch.stack(rows).mean(0), "mean").tolist()
        measures = dict(zip(self.measures[0], means, strict=True))
        tokens = round(measures.pop("tokens") * len(rows) * self.args.world_size)
        if self.plain is not None:
            plain, with_attention = self.plain.float().tolist()
            measures |= {"plain_loss": plain, "plain_loss_gain": plain - with_attention}
        self.measures, self.plain = [], None
        self.log_step(logs, tokens, **measures)
