"""What a training leaves of its models, at its end and on its way."""

from pathlib import Path
from typing import Any

import torch
import transformers

from revela.common import outputs
from revela.training.checkpoints import save_weights
from revela.training.objectives.revela import similarity_measures
from revela.training.trainlog import LOG, append_line


def save_model(model: Any, tokenizer: Any, path: Path, writes: bool) -> None:
    """Write a model to a folder: adapter or weights in safetensors, and its tokenizer.

    All processes call it, the one that `writes` writes.
    """
    if not writes:
        save_weights(model, None)
        return
    with outputs.atomic_output(path) as folder:
        save_weights(model, folder)
        tokenizer.save_pretrained(folder)


class KeepRetriever(transformers.TrainerCallback):
    """Keep the retriever as it is at chosen steps, to see later how it learned."""

    def __init__(self, trainer: Any, steps: list[int], output: Path) -> None:
        self.trainer, self.steps, self.output = trainer, set(steps), output

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep step 0."""
        if state.global_step == 0:
            self._keep(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep a chosen step."""
        self._keep(state.global_step)

    def _keep(self, step: int) -> None:
        if step in self.steps:
            retriever = self.trainer.accelerator.unwrap_model(self.trainer.model).retriever
            writes = self.trainer.is_world_process_zero()
            path = self.output / "steps" / str(step)
            save_model(retriever.model, retriever.tokenizer, path, writes)


class Snapshots(transformers.TrainerCallback):
    """Record the in-batch similarities and losses of one batch at chosen steps (figure 6)."""

    def __init__(self, trainer: Any, steps: list[int], row: dict[str, Any]) -> None:
        self.trainer, self.steps, self.row = trainer, set(steps), row

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record step 0."""
        if state.global_step == 0:
            self._record(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record a chosen step."""
        if state.global_step:
            self._record(state.global_step)

    @torch.no_grad()
    def _record(self, step: int) -> None:
        if step not in self.steps:
            return
        module = self.trainer.accelerator.unwrap_model(self.trainer.model)
        tensors = self.trainer.data_collator.tensors(self.row["texts"], self.row["source"])
        inputs = {name: tensor.to(self.trainer.args.device) for name, tensor in tensors.items()}
        training = module.training
        module.eval()
        with self.trainer.accelerator.autocast():
            similarity = module.similarity(inputs["retriever_ids"], inputs["retriever_mask"])
            result = module(**inputs)
            plain = module.plain_loss(inputs["language_model_ids"], inputs["language_model_mask"])
        module.train(training)
        if not self.trainer.is_world_process_zero():
            return  # computed everywhere: chunks may read those of other processes
        append_line(
            self.trainer.work / LOG,
            {
                "step": step,
                "snapshot": {
                    "texts": self.row["texts"],
                    "documents": self.row.get("documents"),
                    "similarity": similarity.float().tolist(),
                    "loss": float(result["loss"]),
                    "plain_loss": float(plain),
                    **{k: float(v) for k, v in similarity_measures(similarity).items()},
                },
            },
        )
