"""Settings of experiments."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from revela.config.encoding import EncodingKeys
from revela.config.names import LanguageWeights, Name, Weights, entry_name
from revela.config.settings import (
    Natural,
    Positive,
    Precision,
    Seed,
    Settings,
    Share,
    Temperature,
    Tokens,
)

PROJECTIONS = [f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")]
"""The layers that the paper's public code adapts: all linear ones of its models."""


class Lora(Settings):
    """Low-rank adapters; the defaults are the paper's (section 4.1 and its public code)."""

    rank: Positive = 256
    alpha: Positive = 64
    dropout: float = Field(0.1, ge=0, lt=1)
    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = Field(
        "all-linear",
        description="names of layers; all-linear: all linear layers of the model (only the paper's "
        "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj where it has them all)",
    )

    @field_validator("targets")
    @classmethod
    def _one_name_for_the_paper_s(cls, targets: Any) -> Any:
        # The same layers are the same settings, so that what was trained with either stays valid.
        return "all-linear" if set(targets) == set(PROJECTIONS) else targets


class TrainingObjective(Settings):
    """Base of the objectives."""

    title: ClassVar[str]
    on_pairs: ClassVar[bool] = False  # trains on pairs of texts; else on batches of chunks

    @property
    def trains_language_model(self) -> bool:
        """Whether a language model is trained and saved, too."""
        return False


class RevelaObjective(TrainingObjective):
    """In-batch attention (paper, section 3)."""

    title: ClassVar[str] = "Revela"
    name: Literal["revela"]
    temperature: Temperature = Field(1e-4, description="temperature of the in-batch similarities")
    reading: Literal["sum", "joint"] = Field(
        "sum",
        description="sum: what a chunk reads in others is added to its self-attention, as in the "
        "paper; joint: one softmax over its own prefix and all others, which a language model can "
        "read untrained",
    )
    value_norm: bool = True
    """V-normalisation (paper, equation 8); false with reading: joint"""
    min_similarity: float = Field(1e-12, ge=0, description="smaller weights of pairs are skipped")
    similarity_precision: Literal["float32", "bfloat16"] = "float32"
    plain_loss_every: Natural = 50
    """steps between measurements of plain_loss_gain and contrast; 0 never measures"""
    language_model_loss: bool = False
    """add the loss without in-batch attention (of the e rows)"""
    freeze_language_model: bool = False
    similarity: Literal["retriever", "documents"] = "retriever"
    """documents: a chunk reads one of its document; only the language model is trained"""
    wrong_share: Share = 0.2
    """with similarity: documents, share of chunks that read a chunk of a different document"""
    gather_across_devices: bool = False
    """chunks attend to those of all GPUs, so B grows with their number"""

    @property
    def trains_language_model(self) -> bool:
        """Whether a language model is trained and saved, too."""
        return not self.freeze_language_model

    @model_validator(mode="before")
    @classmethod
    def _without_value_norm(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("reading") == "joint":
            return {"value_norm": False} | given
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reading == "joint" and self.value_norm:
            raise ValueError("value_norm: true requires reading: sum")
        for key in ("freeze_language_model", "gather_across_devices"):
            if self.similarity == "documents" and getattr(self, key):
                raise ValueError(f"{key} requires similarity: retriever")
        return self


class ReplugObjective(TrainingObjective):
    """Distillation of a frozen language model's likelihoods (paper, appendix B.3)."""

    title: ClassVar[str] = "REPLUG"
    name: Literal["replug"]
    retriever_temperature: Temperature = 1e-3
    """temperature of the retriever's distribution"""
    language_model_temperature: Temperature = 1e-3
    """temperature of the language model's target distribution"""
    include_self: bool = False
    """include the chunk itself, which then dominates the target, among the candidates"""


class ContrieverObjective(TrainingObjective):
    """InfoNCE with the negatives of a pair and in-batch negatives (paper, appendix C.1)."""

    title: ClassVar[str] = "Contriever"
    on_pairs: ClassVar[bool] = True
    name: Literal["contriever"]
    temperature: Temperature = 0.01
    encode_batch_size: Positive | None = None
    """texts encoded at a time, which bounds memory; the whole batch if null"""


Objective = RevelaObjective | ReplugObjective | ContrieverObjective
AnyObjective = Annotated[Objective, Field(discriminator="name")]


class Experiment(Settings):
    """One trained retriever; the defaults are the paper's (section 4.1)."""

    objective: AnyObjective
    data: Name = Field(description="a batch set or, for an objective on pairs, a set of pairs")
    retriever: Weights
    language_model: LanguageWeights | None = None
    """an experiment (its trained language model), a hub name or a folder; not used on pairs"""
    encoding: EncodingKeys = EncodingKeys()
    lora: Lora | None = Field(Lora(), description="null trains all weights")
    max_length: Tokens = Field(157, description="tokens of a chunk with its prefix and EOS")
    first_half: list[str] = Field([], description="corpora in which a query is half a chunk")
    batches_per_step: Positive = Field(32, description="batches (pairs) per optimizer step")
    batches_per_device: Positive = 1
    """batches (pairs) per forward pass; above 1 only on pairs"""
    steps: Positive | None = Field(None, description="optimizer steps; one epoch if null")
    learning_rate: float = Field(1e-4, gt=0)
    warmup_steps: Annotated[
        Annotated[Natural, Tag("steps")] | Annotated[float, Field(gt=0, lt=1), Tag("share")],
        Discriminator(
            lambda raw: {float: "share", int: "steps"}.get(type(raw)),
            custom_error_type="steps",
            custom_error_message="expected a number of steps, or a fraction of all such as 0.1",
        ),
    ] = 100
    """number of steps, or a fraction of all steps"""
    warmup: Literal["logarithmic", "linear"] = "logarithmic"
    """shape of the warm-up; DeepSpeed's WarmupDecayLR is logarithmic"""
    weight_decay: float = Field(0.0, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    precision: Precision = "bfloat16"
    average_with_start: Share = 0.0
    """share of the start in each weight that is saved; the training itself is the same"""
    similarity_snapshot_steps: list[Natural] = []
    """steps at which the log records the similarities of the first batch"""
    save_retriever_steps: list[Natural] = []
    """steps whose retriever is saved, as the model <experiment>@<step>"""
    seed: Seed = 0
    # Not part of `dump`: the settings of a training do not depend on how many there are.
    seeds: int = Field(1, gt=0, le=100, strict=True, exclude=True)
    """number of trainings, with seeds from `seed` on; a table row shows their mean"""

    @field_validator("data")
    @classmethod
    def _of_its_kind(cls, name: Name, info: ValidationInfo) -> Name:
        if getattr(info.data.get("objective"), "on_pairs", False):
            return entry_name(name, "pairs", "set of pairs")
        return entry_name(name, "batches", "batch set")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.objective.on_pairs and self.language_model is None:
            raise ValueError(f"language_model is required by objective {self.objective.name}")
        if self.batches_per_step % self.batches_per_device:
            raise ValueError(
                f"batches_per_step {self.batches_per_step} is not divisible by "
                f"batches_per_device {self.batches_per_device}"
            )
        if self.steps:
            self.check_steps(self.steps)
        if not self.objective.on_pairs and self.batches_per_device != 1:
            raise ValueError("batches_per_device must be 1: chunks attend only within their batch")
        return self

    def check_steps(self, steps: int) -> None:
        """Reject a schedule that does not fit a training of so many steps.

        Raises:
            ValueError: the learning rate never reaches its value, or a step is after the last one.
        """
        if self.warmup_steps >= max(1, steps):
            raise ValueError(
                f"warmup_steps: {self.warmup_steps} of {steps} steps would never reach the "
                f"learning rate; use at most {steps - 1}, or a fraction such as 0.1"
            )
        for key in ("similarity_snapshot_steps", "save_retriever_steps"):
            if (last := max(getattr(self, key), default=0)) > steps:
                raise ValueError(f"{key}: step {last} is after the last step, {steps}")
