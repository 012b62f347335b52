"""Encoding: text → token ids → vector by a SentenceTransformer, in training and evaluation alike.

Batches have a fixed number of tokens; those of sentence-transformers have a fixed number of texts.
"""

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor

from revela.common.errors import RevelaError
from revela.inbatch.decoder import causal_decoder, run_packed
from revela.inbatch.packing import Packing, flash_takes

Role = Literal["query", "passage"]

_PAD_MULTIPLE = 8
_TOKENS_PER_BATCH = {"cpu": 4_096, "cuda": 65_536}  # padding included


def tokenize(
    encoder: SentenceTransformer,
    texts: Sequence[str],
    role: Role,
    max_length: int,
    first_half: bool = False,
) -> list[list[int]]:
    """Return the token ids of texts in one of their two roles, behind the prompt of that role.

    They are truncated at `max_length` or at the model's own maximum, if that is smaller.
    `first_half` keeps the first half of the ids of prompt + text (paper, appendix B.5); special
    tokens at the end stay.
    """
    if not texts:
        return []
    longest = min(max_length, encoder.max_seq_length or max_length)
    plain: Any = {
        "text": {"padding": False, "max_length": longest},
        "common": {"return_tensors": None, "return_special_tokens_mask": first_half},
    }
    features: Any = encoder.preprocess(
        list(texts), prompt=prompt_of(encoder, role), processing_kwargs=plain
    )
    rows = features["input_ids"]
    if first_half:
        rows = map(_first_half, rows, features["special_tokens_mask"])
    # An empty text without special tokens still has a vector.
    return [ids or [encoder.tokenizer.pad_token_id or 0] for ids in rows]


def prompt_of(encoder: SentenceTransformer, role: Role) -> str:
    """Return the prompt of a role; sentence-transformers calls a passage a document."""
    return encoder.prompts["query" if role == "query" else "document"] or ""


def _first_half(ids: list[int], special: list[int]) -> list[int]:
    end = len(ids)
    while end and special[end - 1]:
        end -= 1
    return ids[: max(1, end // 2)] + ids[end:]


def pad(rows: Sequence[Sequence[int]], pad_id: int | None) -> tuple[Tensor, Tensor]:
    """Return input_ids (N, L) and attention_mask (N, L), right-padded to a multiple of 8."""
    lengths = torch.tensor([len(ids) for ids in rows])
    width = int(lengths.max())
    width += -width % _PAD_MULTIPLE
    input_ids = torch.full((len(rows), width), pad_id or 0, dtype=torch.long)
    for row, ids in zip(input_ids, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.long)
    return input_ids, (torch.arange(width) < lengths[:, None]).long()


def embed(
    encoder: SentenceTransformer,
    input_ids: Tensor,
    attention_mask: Tensor,
    lengths: Sequence[int] | None = None,
    prompt_length: int | None = None,
) -> Tensor:
    """Return embeddings (N, D) in float32 of right-padded ids (N, L), to compare by dot products.

    They are normalized if the model's similarity is the cosine. If the host knows the `lengths` of
    the rows, it need not wait for the device; `prompt_length` is for a pooling without the prompt.
    """
    features: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
    features |= {"lengths": lengths, "modality": "text"}
    if prompt_length is not None:
        features["prompt_length"] = prompt_length
    output = encoder(features)["sentence_embedding"].float()
    encoder = getattr(encoder, "module", encoder)  # within a wrapper for several devices
    embeddings_ND = output[:, : encoder.truncate_dim]
    cosine = encoder.similarity_fn_name == "cosine"
    return F.normalize(embeddings_ND, dim=-1) if cosine else embeddings_ND


def pack_where_possible(encoder: SentenceTransformer) -> SentenceTransformer:
    """Make an encoder's transformer run on packed rows where flash attention supports them.

    Its hidden states are float32, since pooling in half precision would round cosines to 2⁻⁸. Only
    this instance's `forward` changes, so that the saved model names sentence-transformers' class.
    """
    vars(encoder[0])["forward"] = functools.partial(_forward, encoder[0])
    return encoder


def _forward(transformer: Any, features: dict[str, Any], **options: Any) -> dict[str, Any]:
    lengths, mask = features.pop("lengths", None), features["attention_mask"]
    input_ids, device = features["input_ids"], features["input_ids"].device
    flash = flash_takes(transformer.model, device)
    if flash and (model := causal_decoder(transformer.model, input_ids.shape[1])):
        # A row without tokens uses its first pad token.
        known = [max(1, n) for n in lengths or mask.sum(1).tolist()]
        packing = Packing(known, device, flash)
        ids_T = packing.pack(input_ids[:, : packing.width])
        hidden_TD = run_packed(model, ids_T, packing.position_T, packing)
        features["attention_mask"] = mask[:, : packing.width]
        features["token_embeddings"] = packing.pad(hidden_TD).float()
        return features
    features = type(transformer).forward(transformer, features, **options)
    features["token_embeddings"] = features["token_embeddings"].float()
    return features


def encode(
    encoder: SentenceTransformer,
    texts: Sequence[str],
    role: Role,
    max_length: int,
    on_batch: Callable[[int], Any] | None = None,
) -> Tensor:
    """Return what `encode_rows` does of texts of at most `max_length` tokens; see `tokenize`."""
    rows = tokenize(encoder, texts, role, max_length)
    return encode_rows(encoder, rows, texts, role, on_batch)


@torch.inference_mode()
def encode_rows(
    encoder: SentenceTransformer,
    rows: Sequence[Sequence[int]],
    texts: Sequence[str],
    role: Role,
    on_batch: Callable[[int], Any] | None = None,
) -> Tensor:
    """Return embeddings (N, D) of the token ids of texts, in float32 on the CPU.

    Batches have a fixed number of tokens and texts of similar length, so there is little
    padding. `on_batch` is called after each batch with its number of texts.

    Raises:
        RevelaError: an embedding is zero or not finite; the message gives the text.
    """
    device = encoder.device
    on_gpu = device.type == "cuda"
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]), reverse=True)
    place_N = torch.tensor(order).argsort()
    embeddings: list[Tensor] = []
    prompt_length = prompt_tokens(encoder, role)

    def send(tensor: Tensor) -> Tensor:
        return (tensor.pin_memory() if on_gpu else tensor).to(device, non_blocking=True)

    def finish(batch: list[int], output: Tensor, copied: torch.cuda.Event | None) -> None:
        if copied:
            copied.synchronize()
        wrong = ~output.isfinite().all(1) | (output == 0).all(1)
        if bool(wrong.any()):
            bad = batch[int(wrong.nonzero()[0])]
            raise RevelaError(f"the embedding of {texts[bad][:80]!r} is zero or not finite")
        embeddings.append(output)
        if on_batch:
            on_batch(len(batch))

    running: list[tuple[list[int], Tensor, torch.cuda.Event | None]] = []
    while order:
        size = max(1, _TOKENS_PER_BATCH[device.type] // (len(rows[order[0]]) + _PAD_MULTIPLE))
        batch, order = order[:size], order[size:]
        ids, mask = pad([rows[i] for i in batch], encoder.tokenizer.pad_token_id)
        lengths = [len(rows[i]) for i in batch]
        output = embed(encoder, send(ids), send(mask), lengths, prompt_length)
        output = output.to("cpu", non_blocking=True)
        copied = torch.cuda.current_stream(device).record_event() if on_gpu else None
        running.append((batch, output, copied))
        if len(running) > 1:  # meanwhile a GPU computes the next batch
            finish(*running.pop(0))
    for done in running:
        finish(*done)
    return torch.cat(embeddings)[place_N]


def prompt_tokens(encoder: SentenceTransformer, role: Role) -> int | None:
    """Return the length of a role's prompt if the pooling excludes it, else None."""
    excluded = any(not getattr(module, "include_prompt", True) for module in encoder)
    if not (excluded and (prompt := prompt_of(encoder, role))):
        return None
    features: dict[str, Any] = encoder.preprocess(["x"], prompt=prompt)
    return features.get("prompt_length")


def positions(model: Any) -> float:
    """Return the number of tokens that a model has positions for; infinity without a limit."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    for name, module in model.named_modules():
        # RoBERTa and its relatives count positions from the padding index on.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None):
            limit = min(limit, module.num_embeddings - module.padding_idx - 1)
    return limit


def devices() -> list[str]:
    """Return the devices to compute on: every GPU, or the CPU."""
    return [f"cuda:{n}" for n in range(torch.cuda.device_count())] or ["cpu"]


def prepare_for_ragged_batches() -> None:
    """Prepare a GPU for batches that have new shapes at each step; call it before the first one.

    cuDNN's attention, which SDPA prefers on Hopper GPUs since torch 2.11, builds a plan for each
    exact shape in 0.4 to 0.9 s and caches plans without limit. Fixed segments of memory fragment.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def native_dtype(precision: str) -> torch.dtype:
    """Return the dtype of a precision: bfloat16 only if the device supports it.

    CPUs compute in float32, so that results agree between processors; REVELA_CPU_BFLOAT16=1 in the
    environment enables bfloat16 on those that do not emulate it.
    """
    if torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = os.environ.get("REVELA_CPU_BFLOAT16") == "1" and _cpu_has_bfloat16()
    return torch.bfloat16 if precision == "bfloat16" and native else torch.float32


def _cpu_has_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
