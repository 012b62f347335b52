"""Training: one entry point for the three objectives, on the Hugging Face Trainer."""

import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from revela.attention import zero
from revela.attention.cross_document import NotFinite
from revela.common import outputs
from revela.common.errors import RevelaError
from revela.common.usage import spent
from revela.common.versions import STAGE_VERSIONS
from revela.config.steps import Experiment
from revela.encoder import (
    Encoder,
    add_lora,
    devices,
    load_model,
    load_tokenizer,
    native_dtype,
)
from revela.training import trackers
from revela.training.callbacks import KeepRetriever, Snapshots, save_model
from revela.training.checkpoints import (
    ResumableTrainer,
    load_weights,
    run,
    save_weights,
    work_folder,
)
from revela.training.collators import BatchCollator, PairCollator, load_rows
from revela.training.objectives.contriever import Contriever
from revela.training.objectives.replug import Replug
from revela.training.objectives.revela import Revela
from revela.training.trainlog import LOG, Progress, append_line, keep_freed_memory, memory_gb


def train(
    experiment: Experiment,
    data: Path,
    output: Path,
    checkpoint_minutes: float = 15,
    zero_stage: int = 0,
) -> None:
    """Train a retriever and write it to the folder `output`.

    Launched by torchrun, all its processes train together. A step has the same batches, dropout
    included, on any number of them, so that they change the result by rounding only.

    Writes `retriever/` (adapter or weights in safetensors, tokenizer), `language_model/` where one
    is trained, `log.jsonl` (one line a step) and `manifest.json`. While it runs, checkpoints stand
    in `output/checkpoints/`, in a folder of these settings and data: calling again goes on from the
    last one.

    Args:
        experiment: the settings.
        data: a batch file; for Contriever a pair file.
        output: the model's folder.
        checkpoint_minutes: between checkpoints at most.
        zero_stage: of DeepSpeed, 2 or 3; 0 is DDP.

    Raises:
        RevelaError: a model cannot be loaded, the loss is not finite, the folder cannot be
            written or is in use, or a signal stopped the training (a checkpoint is saved).
    """
    folders = [Path(name) for name in (experiment.retriever, experiment.language_model) if name]
    inputs = [data, *(folder for folder in dict.fromkeys(folders) if folder.is_dir())]
    with work_folder(output, experiment.dump(), inputs) as work:
        keep_freed_memory()
        transformers.set_seed(experiment.seed)
        trackers.prepare(output, work.name)
        # First: ZeRO-3 takes weights apart where they are loaded.
        arguments = _arguments(experiment, work, zero_stage)
        module, collate = _build(experiment, zero_stage)
        rows = load_rows(data)
        if len(rows) < experiment.batches_per_step:
            raise RevelaError(
                f"{data}: {len(rows)} rows are fewer than batches_per_step "
                f"{experiment.batches_per_step}"
            )
        trainer = _Trainer(
            experiment=experiment,
            model=module,
            args=arguments,
            train_dataset=rows,
            data_collator=collate,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(Progress())
        if isinstance(module, Revela) and experiment.similarity_snapshot_steps:
            trainer.add_callback(Snapshots(trainer, experiment.similarity_snapshot_steps, rows[0]))
        if experiment.save_retriever_steps:
            trainer.add_callback(KeepRetriever(trainer, experiment.save_retriever_steps, output))
        run(trainer, checkpoint_minutes)
        _finish(experiment, inputs, output, trainer)


def _finish(experiment: Experiment, inputs: list[Path], output: Path, trainer: "_Trainer") -> None:
    """Write the finished models, the log and the manifest."""
    module, writes = trainer.model, trainer.is_world_process_zero()
    retriever = module.retriever
    save_model(retriever.model, retriever.tokenizer, output / "retriever", writes)
    if isinstance(module, Revela) and not module.settings.freeze_language_model:
        tokenizer = load_tokenizer(str(experiment.language_model))
        save_model(module.language_model, tokenizer, output / "language_model", writes)
    if not writes:
        return
    outputs.write_text(output / LOG, (trainer.work / LOG).read_text())
    outputs.write_manifest(
        output,
        experiment.model_dump(mode="json"),
        inputs,
        stage_version=STAGE_VERSIONS["train"],
        device=str(trainer.args.device),
        precision="bfloat16" if trainer.args.bf16 else "float32",
        **trainer.processes(),
        steps=trainer.state.global_step,
        trainable_parameters=sum(
            math.prod(zero.whole_shape(p)) for p in module.parameters() if p.requires_grad
        ),
        train_seconds=round(trainer.seconds, 1),
        tokens_per_second=round(trainer.tokens / max(trainer.seconds, 1e-9), 1),
        **spent(trainer.work),
    )


# ---------------------------------------------------------------------------- what is trained


def _build(experiment: Experiment, zero_stage: int) -> tuple[nn.Module, Any]:
    """Load the models of an experiment and return its objective and its collator."""
    dtype = native_dtype(experiment.precision)
    # Frozen weights can be half precision; trained ones are kept in float32 under autocast.
    weights = dtype if experiment.lora else torch.float32

    def load(name: str, causal: bool) -> Any:
        model = load_model(name, causal=causal, dtype=weights)
        if experiment.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        return model

    def adapted(model: Any) -> Any:
        if not experiment.lora:
            return model
        model = add_lora(model, experiment.lora, experiment.seed)
        if zero_stage:  # no autocast: float32 adapters would be computed in float32
            for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
                weight.data = weight.data.to(dtype)
        return model

    tokenizer = load_tokenizer(experiment.retriever)
    retriever = Encoder(
        adapted(load(experiment.retriever, causal=False)), tokenizer, experiment.encoding
    )
    objective = experiment.objective
    if objective.name == "contriever":
        return Contriever(retriever, objective), PairCollator(experiment, tokenizer)
    name = str(experiment.language_model)
    language_model = load(name, causal=True)
    collate = BatchCollator(experiment, tokenizer, load_tokenizer(name))
    if objective.name == "replug":
        return Replug(retriever, language_model, objective), collate
    return Revela(retriever, adapted(language_model), objective), collate


# ---------------------------------------------------------------------------- the trainer


def _arguments(
    experiment: Experiment, work: Path, zero_stage: int
) -> transformers.TrainingArguments:
    device, dtype = torch.device(devices()[0]), native_dtype(experiment.precision)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    together = world * experiment.batches_per_device
    if experiment.batches_per_step % together:
        raise RevelaError(
            f"batches_per_step {experiment.batches_per_step} is not divisible by {world} processes "
            f"× batches_per_device {experiment.batches_per_device}"
        )
    accumulation = experiment.batches_per_step // together
    return transformers.TrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=experiment.batches_per_device,
        gradient_accumulation_steps=accumulation,
        deepspeed=zero.deepspeed_config(
            zero_stage,
            micro_batch=experiment.batches_per_device,
            accumulation=accumulation,
            max_gradient_norm=experiment.max_gradient_norm,
            bfloat16=dtype == torch.bfloat16,
        ),
        # The buckets of DDP then stay as they are, so that sums after a resume have their order.
        ddp_find_unused_parameters=True,
        max_steps=experiment.steps or -1,
        num_train_epochs=1,
        learning_rate=experiment.learning_rate,
        lr_scheduler_type="linear",  # WarmupDecayLR: linear up, linear down to zero
        warmup_steps=experiment.warmup_steps,
        weight_decay=experiment.weight_decay,
        max_grad_norm=experiment.max_gradient_norm,
        bf16=dtype == torch.bfloat16,
        use_cpu=device.type == "cpu",
        seed=experiment.seed,
        logging_steps=1,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        save_steps=experiment.checkpoint_steps,
        save_total_limit=experiment.checkpoints_kept,
        remove_unused_columns=False,
        dataloader_pin_memory=device.type == "cuda",
        dataloader_drop_last=True,
        label_names=[],
        report_to=trackers.chosen(),
        disable_tqdm=True,
        average_tokens_across_devices=False,
    )


class _Trainer(ResumableTrainer):
    """A trainer with this project's log, and checkpoints of the trained weights only."""

    def __init__(self, experiment: Experiment, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.model_accepts_loss_kwargs = False  # each micro-batch's mean counts alike
        self.experiment = experiment
        self.work = Path(str(self.args.output_dir))
        self.measures: list[dict[str, torch.Tensor]] = []
        self.plain: torch.Tensor | None = None
        self.tokens = 0
        self.seconds = 0.0
        self.clock = time.monotonic()

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler:
        """Draw whole steps only: a shorter last one would depend on the number of processes."""
        rows, step = len(self.train_dataset), self.experiment.batches_per_step
        return torch.utils.data.RandomSampler(self.train_dataset, num_samples=rows - rows % step)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **_: Any
    ) -> Any:
        """Return the objective's loss, keeping its measures for the log.

        Raises:
            RevelaError: the similarities are not finite.
        """
        self._seed_dropout()
        try:
            result = model(**inputs)
        except NotFinite as error:
            raise self._broken(self.state.global_step + 1, str(error)) from error
        tokens = sum(tensor.sum() for name, tensor in inputs.items() if name.endswith("_mask"))
        self.measures.append(
            {"tokens": tokens, "loss": result["loss"].detach(), **result["measures"]}
        )
        if len(self.measures) == 1 and self._wants_plain_loss():
            names = ("language_model_ids", "language_model_mask")
            # A measure must not change the training: dropout draws from a copy of the state.
            with self.accelerator.autocast(), torch.random.fork_rng(self._devices()):
                plain = self.accelerator.unwrap_model(model).plain_loss(*map(inputs.get, names))
            own = result["loss"].detach()
            if getattr(self.experiment.objective, "language_model_loss", False):
                own = own - plain  # the e rows' loss is in it
            # Both on the same chunks: their difference is what in-batch attention gives.
            self.plain = torch.stack([plain, own])
        return (result["loss"], result) if return_outputs else result["loss"]

    def _seed_dropout(self) -> None:
        """Seed by a batch's place in its step, in whatever process it is."""
        place = len(self.measures) * self.args.world_size + self.args.process_index
        key = f"{self.experiment.seed} {self.state.global_step} {place}"
        torch.manual_seed(random.Random(key).getrandbits(63))

    def _devices(self) -> list[torch.device]:
        return [self.args.device] if self.args.device.type == "cuda" else []

    def _wants_plain_loss(self) -> bool:
        every = getattr(self.experiment.objective, "plain_loss_every", 0)
        return every > 0 and self.state.global_step % every == 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write one line of JSON for a step.

        Raises:
            RevelaError: the loss is not finite.
        """
        if "loss" not in logs or not self.measures:
            return
        now = time.monotonic()
        seconds, self.clock = now - self.clock, now
        rows = [torch.stack([value.float() for value in m.values()]) for m in self.measures]
        # Of all processes; all figures in one transfer from the device.
        means = self.accelerator.reduce(torch.stack(rows).mean(0), "mean").tolist()
        entry = {"step": self.state.global_step} | dict(zip(self.measures[0], means, strict=True))
        step_tokens = round(entry.pop("tokens") * len(rows) * self.args.world_size)
        if self.plain is not None:
            plain, with_attention = self.plain.float().tolist()
            entry |= {"plain_loss": plain, "plain_loss_gain": plain - with_attention}
        entry |= {
            "learning_rate": logs.get("learning_rate"),
            "gradient_norm": float(logs.get("grad_norm", math.nan)),
            "tokens_per_second": round(step_tokens / max(seconds, 1e-9), 1),
            "memory_gb": round(memory_gb(), 3),
        }
        self.tokens += step_tokens
        self.seconds += seconds
        self.measures, self.plain = [], None
        self.state.log_history.append({"step": entry["step"], "loss": entry["loss"]})
        if self.is_world_process_zero():
            append_line(self.work / LOG, entry)
        for name in ("loss", "gradient_norm"):
            if not math.isfinite(entry[name]):
                raise self._broken(entry["step"], f"{name} is {entry[name]}")
        self.callback_handler.on_log(self.args, self.state, self.control, entry)

    def _broken(self, step: int, what: str) -> RevelaError:
        return RevelaError(
            f"step {step}: {what}; lower learning_rate (now {self.experiment.learning_rate}) "
            "or use precision float32"
        )

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save what is trained, each model in a folder of its own, in safetensors."""
        for name, model in self._trained():
            save_weights(model, Path(str(output_dir)) / name if self.args.should_save else None)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load what `_save` wrote."""
        for name, trained in self._trained():
            load_weights(trained, Path(resume_from_checkpoint) / name)

    def _trained(self) -> Iterator[tuple[str, Any]]:
        module = self.accelerator.unwrap_model(self.model)
        yield "retriever", module.retriever.model
        if isinstance(module, Revela) and not module.settings.freeze_language_model:
            yield "language_model", module.language_model
