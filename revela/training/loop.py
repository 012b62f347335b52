"""The training loop: HF's Trainer, with a log, checkpoints and facts for the manifest."""

import math
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, RandomSampler
from tqdm.auto import tqdm
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer import SAFE_WEIGHTS_NAME, SCHEDULER_NAME

from revela.common.errors import RevelaError
from revela.common.memory import memory_gb
from revela.config.training import Experiment
from revela.retriever.encode import devices, native_dtype
from revela.training import checkpoints, zero
from revela.training.schedule import warmup_decay
from revela.training.trainlog import LOG, append_line, keep_log_until, read_log


def training_arguments(
    settings: Experiment, work: Path, rows: int, zero_stage: int = 0, loader_workers: int = 0
) -> transformers.TrainingArguments:
    """Return HF's arguments for a training in the launcher's processes.

    `work` is the folder for checkpoints; `rows` are those of a forward pass.

    Raises:
        RevelaError: a step cannot be divided among the processes.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    accumulation, rest = divmod(settings.batches_per_step, world * rows)
    if rest:
        raise RevelaError(
            f"a step of {settings.batches_per_step} rows is not divisible by {world} processes "
            f"× {rows} rows per forward pass"
        )
    device, bfloat16 = devices()[0], native_dtype(settings.precision) == torch.bfloat16
    arguments = transformers.TrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=accumulation,
        deepspeed=zero.deepspeed_config(zero_stage),
        # DDP then keeps its buckets, so that a resumed training sums gradients in the same order.
        ddp_find_unused_parameters=True,
        max_steps=settings.steps or -1,
        num_train_epochs=1,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_gradient_norm,
        bf16=bfloat16,
        use_cpu=device == "cpu",
        seed=settings.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_steps=0,  # the guard saves every few minutes, the Trainer after the last step
        save_total_limit=2,
        remove_unused_columns=False,
        label_names=[],
        average_tokens_across_devices=False,
        dataloader_pin_memory=device != "cpu",
        dataloader_num_workers=loader_workers,
        report_to=_trackers(),
        disable_tqdm=True,
    )
    # One process uses one GPU: with several visible ones the Trainer would use DataParallel.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def _trackers() -> list[str]:
    """Return the trackers that the environment names, as HF's `report_to`.

    Raises:
        RevelaError: HF does not know one, or its package is missing.
    """
    names = os.environ.get("REVELA_TRACKERS", "").replace(",", " ").split()
    try:
        for callback in get_reporting_integration_callbacks(names):
            callback()
    except (ValueError, RuntimeError) as error:
        raise RevelaError(f"REVELA_TRACKERS: {error}") from error
    return names


class Trainer(transformers.Trainer):
    """Trains an objective and logs its measures at each step.

    It resumes from complete checkpoints only. A checkpoint contains the trained weights only; with
    ZeRO each process writes and reads its own shard of weights and optimizer states, through
    DeepSpeed's engine.
    """

    def __init__(self, experiment: Experiment, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.remove_callback(transformers.PrinterCallback)
        self.model_accepts_loss_kwargs = False  # each micro-batch's mean has equal weight
        self.experiment = experiment
        self.work = Path(str(self.args.output_dir))
        self.clock = time.monotonic()
        accumulated = self.args.train_batch_size * self.args.gradient_accumulation_steps
        self.rows_per_step = accumulated * self.args.world_size
        self.measures: list[dict[str, torch.Tensor]] = []  # of each forward pass of this step
        self.pulse: dict[str, torch.Tensor] = {}  # of this step's first batch

    def get_train_dataloader(self) -> DataLoader:
        """Load complete steps only: a shorter last one would depend on the number of processes."""
        rows, workers = len(self.train_dataset), self.args.dataloader_num_workers
        # The Trainer fetches all batches of a step before it computes the first one.
        ahead = math.ceil(self.args.gradient_accumulation_steps / max(workers, 1)) + 1
        loader = DataLoader(
            self.train_dataset,
            self.args.train_batch_size,
            sampler=RandomSampler(self.train_dataset, num_samples=rows - rows % self.rows_per_step),
            collate_fn=self.data_collator,
            num_workers=workers,
            prefetch_factor=ahead if workers else None,
            pin_memory=self.args.dataloader_pin_memory,
            worker_init_fn=checkpoints.start_loader_worker,
        )
        return self.accelerator.prepare(loader)

    def run(self, checkpoint_minutes: float = 15) -> None:
        """Train from the last checkpoint to the end; save one every `checkpoint_minutes`.

        Raises:
            RevelaError: a signal or the job's time limit stopped the training (a checkpoint is
                saved), another process died, the loss is not finite, or the checkpoint is sharded
                for another number of processes.
        """
        guard = checkpoints.Guard(self, checkpoint_minutes * 60)
        self.add_callback(guard)
        main = self.is_world_process_zero()
        # One process finds it and removes damaged ones; all resume from it.
        newest = [checkpoints.last_checkpoint(self.work) if main else None]
        (checkpoint,) = broadcast_object_list(newest)
        step = checkpoints.step_of(checkpoint)
        if main:
            keep_log_until(self.work / LOG, step)
        if checkpoint:
            checkpoints.check_processes(checkpoint, self.processes())
            if main:
                print(f"resuming from the checkpoint of step {step}", flush=True)
        if checkpoint and step >= self.args.max_steps > 0 and not self.is_deepspeed_enabled:
            # The Trainer would take another step before it stops.
            self._load_from_checkpoint(str(checkpoint))
            state = checkpoint / transformers.trainer.TRAINER_STATE_NAME
            self.state = transformers.TrainerState.load_from_json(str(state))
            return
        self.bar = tqdm(desc="training", unit="step", initial=step, mininterval=2, disable=not main)
        with guard.listening(), self.bar:
            try:
                self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            except RuntimeError as error:
                if "gloo" not in str(error) and not isinstance(error, torch.distributed.DistError):
                    raise
                raise RevelaError(
                    f"lost another process after step {self.state.global_step}; "
                    "run the same command to resume from the last checkpoint"
                ) from error
        if guard.stopped_by and self.state.global_step < self.state.max_steps:
            self.accelerator.wait_for_everyone()
            raise checkpoints.Stopped(
                f"stopped by {guard.stopped_by} at step {self.state.global_step} of "
                f"{self.state.max_steps}; run the same command to resume"
            )

    def facts(self) -> dict[str, Any]:
        """Return this training's facts for the manifest: of all its steps, by its log."""
        lines = [line for line in read_log(self.work / LOG) if "seconds" in line]
        tokens, seconds = (sum(line[key] for line in lines) for key in ("tokens", "seconds"))
        on_gpu = self.args.device.type == "cuda"
        return {
            "device": str(self.args.device),
            "precision": "bfloat16" if self.args.bf16 else "float32",
            **self.processes(),
            "steps": self.state.global_step,
            "tokens": tokens,
            "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
            "hours": round(seconds / 3600, 5),
            "gpus": self.args.world_size if on_gpu else 0,
            "gpu_hours": round(seconds / 3600 * self.args.world_size, 5) if on_gpu else 0.0,
        }

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
        # Dropout is seeded by a batch's place in its step, independent of its process.
        place = len(self.measures) * self.args.world_size + self.args.process_index
        key = f"{self.experiment.seed} {self.state.global_step} {place}"
        documents = inputs.pop("documents", None)  # for the pulse only
        torch.manual_seed(random.Random(key).getrandbits(63))
        result = model(**inputs)
        loss = result["loss"].detach()
        tokens = sum(tensor.sum() for name, tensor in inputs.items() if name.endswith("_mask"))
        every = getattr(self.experiment.objective, "plain_loss_every", 0)
        if every and self.state.global_step % every == 0 and not self.measures:
            ids, mask = inputs["language_model_ids"], inputs["language_model_mask"]
            devices = [self.args.device] if self.args.device.type == "cuda" else []
            # Measuring must not change the training: dropout uses a copy of the random state.
            with self.accelerator.autocast(), torch.random.fork_rng(devices):
                self.pulse = self.model.pulse(ids, mask, documents, inputs.get("sizes"))
            plain = self.pulse["plain_loss"]
            if getattr(self.experiment.objective, "language_model_loss", False):
                loss = loss - plain  # the dual loss contains it
            # Both on the same chunks: their difference is the gain from in-batch attention.
            self.pulse["plain_loss_gain"] = plain - loss
        self.measures.append(
            {"tokens": tokens, "loss": result["loss"].detach(), **result["measures"]}
        )
        return result["loss"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log one step: means over all processes, in one transfer from the device.

        Raises:
            Stopped: the loss is not finite; raised in all processes.
        """
        if "loss" not in logs or not self.measures:
            return
        rows = [torch.stack([value.float() for value in m.values()]) for m in self.measures]
        means = self.accelerator.reduce(torch.stack(rows).mean(0), "mean").tolist()
        measures = dict(zip(self.measures[0], means, strict=True))
        tokens = round(measures.pop("tokens") * len(rows) * self.args.world_size)
        if self.pulse:
            values = torch.stack(list(self.pulse.values())).tolist()
            measures |= dict(zip(self.pulse, values, strict=True))
        self.measures, self.pulse = [], {}
        now = time.monotonic()
        seconds, self.clock = now - self.clock, now
        entry = {
            "step": self.state.global_step,
            "of": self.state.max_steps,
            **measures,
            "learning_rate": logs["learning_rate"],
            "gradient_norm": float(logs.get("grad_norm", math.nan)),
            "tokens": tokens,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
            "memory_gb": round(memory_gb(), 3),
        }
        self.write_line(entry)
        self.bar.total = self.state.max_steps
        self.bar.set_postfix(loss=f"{entry['loss']:.4f}", refresh=False)
        self.bar.update()
        for name in ("loss", "gradient_norm"):
            if not math.isfinite(entry[name]):
                self.accelerator.wait_for_everyone()
                advice = f"lower learning_rate (now {self.args.learning_rate})"
                if entry["step"] == 1:  # computed before the first update
                    advice = "the weights of a model may not be finite, check them"
                raise checkpoints.Stopped(
                    f"step {entry['step']}: {name} is {entry[name]}; {advice} or use precision "
                    "float32"
                )
        self.callback_handler.on_log(self.args, self.state, self.control, entry)

    def write_line(self, entry: dict[str, Any]) -> None:
        """Append a line to the log, in one process only."""
        if self.is_world_process_zero():
            append_line(self.work / LOG, entry)

    def processes(self) -> dict[str, int]:
        """Return the number of processes, and what ties a checkpoint to it."""
        stage = self.args.deepspeed["zero_optimization"]["stage"] if self.args.deepspeed else 0
        gathers = getattr(self.experiment.objective, "gather_across_devices", False)
        kind = {"zero": stage, "processes": self.args.world_size}
        return kind | ({"gathered": 1} if gathers else {})

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # each process writes its own files
        if self.is_world_process_zero():
            folder = self.work / f"checkpoint-{self.state.global_step}"
            checkpoints.mark_complete(folder, self.processes())

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.args.should_save:
            folder = Path(str(output_dir))
            folder.mkdir(parents=True, exist_ok=True)
            weights = self.model.named_parameters()
            trained = {name: weight.detach() for name, weight in weights if weight.requires_grad}
            save_file(trained, folder / SAFE_WEIGHTS_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        weights = load_file(Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME)
        self.model.load_state_dict(weights, strict=False)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights, unless the engine's checkpoint contains them."""
        if not self.is_deepspeed_enabled:
            super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_deepspeed_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        self.deepspeed.save_checkpoint(output_dir, exclude_frozen_parameters=True)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> Any:
        engine = self.is_deepspeed_enabled and resume_from_checkpoint is not None
        of_trainer = None if engine else resume_from_checkpoint
        prepared = super()._prepare_for_training(max_steps, train_dataloader, of_trainer)
        if engine:  # not strict: the checkpoint has no frozen weights
            self.deepspeed.load_checkpoint(resume_from_checkpoint, load_module_strict=False)
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
        return prepared
