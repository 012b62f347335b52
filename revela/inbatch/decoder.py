"""Runs a stock causal language model of transformers on packed rows with custom attention.

Other callers are not affected: the attention is transformers' own unless the call passes packed
rows, and only then does the last MLP skip tokens.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "revela_in_batch"  # of the attention function, in transformers' registry
_FOLLOWING = "_revela_following"


class Rows(Protocol):
    """Rows packed into one, and how their tokens attend."""

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """Return (T, H, D) of queries (T, H, D), keys and values (T, G, D).

        Padded rows get scaled queries, and a scale of one; flash attention scales by itself.
        """


def run_packed(model: Any, ids_T: Tensor, position_T: Tensor, rows: Rows) -> Tensor:
    """Return the last hidden states (T, D) of packed tokens, whose positions are in their own rows.

    The model must come from `causal_lm`.
    """
    with packed_attention(model):
        return model.get_decoder()(
            input_ids=ids_T[None],
            position_ids=position_T[None],
            attention_mask=ids_T.new_zeros(1, 1, 1, 1),  # four axes: no mask is built
            use_cache=False,
            packed_rows=rows,
        ).last_hidden_state[0]


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packed_rows: Rows | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Implement transformers' attention interface; without packed rows its SDPA is used."""
    skip_last_mlp(module, 0)
    if packed_rows is None:
        stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return stock(module, query, key, value, attention_mask, scaling=scaling, **arguments)
    for what in ("dropout", "s_aux", "softcap", "position_bias"):
        given = arguments.get(what)
        if given is not None and (isinstance(given, Tensor) or given):
            raise ValueError(
                f"{type(module).__name__} attends with {what}, which packed rows do not support"
            )
    if attention_mask is not None and attention_mask.numel() > 1:
        raise ValueError(
            f"{type(module).__name__} masks by itself, which packed rows do not support"
        )
    return _packed(module, query, key, value, scaling, packed_rows), None


@torch.compiler.disable  # it depends on the rows, which differ at every step
def _packed(
    module: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, rows: Rows
) -> Tensor:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    packing: Any = getattr(rows, "packing", rows)
    if not packing.flash:  # scaling the queries avoids scaling the scores
        query, scale = query * scale, 1.0
    query, key = query.to(value.dtype), key.to(value.dtype)  # RoPE returns float32 under autocast
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    return rows.attend(module, query, key, value, scale)[None]


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def causal_lm(language_model: Any, length: int) -> Any:
    """Return the causal LM below any LoRA, which runs on packed rows of at most `length` tokens.

    Raises:
        ValueError: its attention cannot be replaced, or does more than plain attention.
    """
    adapted = hasattr(language_model, "get_base_model")
    model = language_model.get_base_model() if adapted else language_model
    config, name = model.config.get_text_config(), type(model).__name__
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True) and length > window:
        raise ValueError(f"{name} attends to {window} tokens only, but {length} are needed")
    if model.config._attn_implementation == NAME:
        return model
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "attention_dropout"):
        if getattr(config, key, None):
            raise ValueError(f"{name} has {key}, which in-batch attention does not support")
    if (getattr(config, "logit_scale", None) or getattr(config, "logits_scaling", None) or 1) != 1:
        raise ValueError(f"{name} scales its logits, which in-batch attention does not support")
    kinds = set(getattr(config, "layer_types", None) or [])
    if kinds - {"full_attention", "sliding_attention"}:
        raise ValueError(f"{name} has layers of {', '.join(sorted(kinds))}, which cannot be packed")
    takes = inspect.signature(model.get_decoder().forward).parameters
    replaceable = getattr(type(model), "_supports_attention_backend", False)
    if not replaceable or "position_ids" not in takes:
        raise ValueError(f"{name} does not use transformers' attention interface")
    return model


@contextlib.contextmanager
def packed_attention(model: Any) -> Iterator[None]:
    """Give a model the attention of packed rows.

    Afterwards it has its own again, unless the backward pass will compute its layers once more
    (gradient checkpointing).
    """
    before = model.config._attn_implementation
    if before == NAME:
        yield
        return
    layer = getattr(model.get_decoder(), "layers", [None])[-1]
    model.set_attn_implementation(NAME)
    dense = hasattr(getattr(layer, "mlp", None), "down_proj")  # one tensor in, one out
    following = _Following(layer.mlp) if dense else None
    if following:
        setattr(layer.self_attn, _FOLLOWING, following)
    try:
        yield
    finally:
        if not getattr(layer, "gradient_checkpointing", False):
            model.set_attn_implementation(before)
            if following:
                delattr(layer.self_attn, _FOLLOWING)
                following.remove()


def causal_decoder(model: Any, length: int) -> Any | None:
    """Return the model as `causal_lm` does, or None if it is no causal decoder or not supported."""
    decoder = (model.get_base_model() if hasattr(model, "get_base_model") else model).get_decoder()
    attention = getattr(getattr(decoder, "layers", [None])[-1], "self_attn", None)
    if not (getattr(attention, "is_causal", False) and getattr(decoder.config, "is_causal", True)):
        return None
    try:
        return causal_lm(model, length)
    except ValueError:
        return None


def skip_last_mlp(attention: Any, tokens: int) -> None:
    """Make the MLP after the last layer's attention skip the first tokens in this pass.

    E rows end at the last layer's keys and values: their output of the MLP is never used.
    """
    if following := getattr(attention, _FOLLOWING, None):
        following.skipped_tokens = tokens


class _Following:
    """The MLP after the last attention, and how many tokens it skips."""

    def __init__(self, mlp: Any) -> None:
        self.skipped_tokens = self.cut_tokens = 0
        cut, fill = mlp.register_forward_pre_hook(self._cut), mlp.register_forward_hook(self._fill)
        self._hooks = (cut, fill)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _cut(self, _: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        # Reset at once: a recomputation for the backward pass may end before `_fill`.
        self.cut_tokens, self.skipped_tokens = self.skipped_tokens, 0
        return (inputs[0][:, self.cut_tokens :],)

    def _fill(self, _: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return F.pad(output, (0, 0, self.cut_tokens, 0))
