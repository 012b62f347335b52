"""The encoder: text → token ids → vector, the same function for training and evaluation."""

import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from revela.attention import zero
from revela.attention.decoder import causal_decoder, run_packed
from revela.attention.packing import Packing, flash_takes
from revela.common.errors import RevelaError, check_name, reading
from revela.common.hub import converted_revision, explained, read_model_json
from revela.config.encoding import Encoding
from revela.config.evaluation import EncoderModel
from revela.config.local import check_model_folder
from revela.config.training import Lora
from revela.retriever.save import appends_eos, check_vocabulary, read_encoding

Role = Literal["query", "passage"]

_PAD_MULTIPLE = 8
_TOKENS_PER_BATCH = {"cpu": 4_096, "cuda": 65_536}  # padding included


def token_ids(
    tokenizer: Any,
    texts: Sequence[str],
    role: Role,
    encoding: Encoding,
    max_length: int,
    first_half: bool = False,
) -> list[list[int]]:
    """Return the token ids of texts in one of their two roles.

    Prefix + text is stripped and truncated to at most `max_length` ids, EOS included. The EOS is
    appended as an id, because a tokenizer may drop one that is written as text. `first_half` keeps
    the first half of the ids of prefix + text (paper, appendix B.5).
    """
    prefix = encoding.query_prefix if role == "query" else encoding.passage_prefix
    # A tokenizer that appends the EOS reserves room for it.
    room = max_length - int(encoding.append_eos and not appends_eos(tokenizer))
    whole = [(prefix + text).strip() for text in texts]
    rows = tokenizer(whole, truncation=True, max_length=room)["input_ids"]
    end = [tokenizer.eos_token_id] if encoding.append_eos else []
    if end == [None]:
        raise RevelaError("the tokenizer has no EOS token: set encoding.append_eos: false")
    if end:
        rows = [ids[:-1] if ids[-1:] == end else ids for ids in rows]
    if first_half:
        rows = [ids[: max(1, len(ids) // 2)] for ids in rows]
    # An empty text without BOS and EOS still has a vector.
    return [ids + end or [tokenizer.pad_token_id or 0] for ids in rows]


def pad(rows: Sequence[Sequence[int]], pad_id: int | None) -> tuple[Tensor, Tensor]:
    """Pad rows of ids on the right to the same length, a multiple of 8.

    Returns:
        input_ids (N, L) and attention_mask (N, L), 1 on real tokens.
    """
    lengths = torch.tensor([len(ids) for ids in rows])
    width = int(lengths.max())
    width += -width % _PAD_MULTIPLE
    input_ids = torch.full((len(rows), width), pad_id or 0, dtype=torch.long)
    for row, ids in zip(input_ids, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.long)
    return input_ids, (torch.arange(width) < lengths[:, None]).long()


class Encoder(nn.Module):
    """A backbone, optionally with an adapter, and the pooling of its output into a vector."""

    def __init__(
        self, model: Any, tokenizer: Any, encoding: Encoding, max_length: float = math.inf
    ) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.encoding, self.max_length = encoding, max_length

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, lengths: Sequence[int] | None = None
    ) -> Tensor:
        """Return embeddings (N, D) in float32 of right-padded ids (N, L), normalised if set.

        `lengths` are the token counts of the rows. If the host knows them, it need not wait for the
        device to read them from the mask.
        """
        hidden_NLD = self._hidden(input_ids, attention_mask, lengths)
        if self.encoding.pooling == "cls":
            embeddings_ND = hidden_NLD[:, 0].float()
        elif self.encoding.pooling == "mean":
            weights = attention_mask[:, : hidden_NLD.shape[1], None].float()
            embeddings_ND = (hidden_NLD.float() * weights).sum(1) / weights.sum(1)
        else:
            rows, width = hidden_NLD.shape[:2]
            starts = torch.arange(rows, device=input_ids.device) * width
            last = starts + (attention_mask.sum(1) - 1).clamp_min(0)
            embeddings_ND = hidden_NLD.flatten(0, 1).index_select(0, last).float()
        return F.normalize(embeddings_ND, dim=-1) if self.encoding.normalize else embeddings_ND

    def _hidden(
        self, input_ids: Tensor, attention_mask: Tensor, lengths: Sequence[int] | None
    ) -> Tensor:
        """Return the last hidden states (N, L, D); without padding if flash supports it."""
        device = input_ids.device
        flash = flash_takes(self.model, device)
        if flash and (model := causal_decoder(self.model, input_ids.shape[1])):
            # A row without tokens uses its first pad token.
            known = [max(1, n) for n in lengths or attention_mask.sum(1).tolist()]
            packing = Packing(known, device, flash)
            ids_T = packing.pack(input_ids[:, : packing.width])
            return packing.pad(run_packed(model, ids_T, packing.position_T, packing))
        # A decoder's cache would copy the keys and values of every layer.
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        return output.last_hidden_state

    def encode(
        self,
        texts: Sequence[str],
        role: Role,
        max_length: int,
        on_batch: Callable[[int], Any] | None = None,
    ) -> Tensor:
        """Return embeddings (N, D) of texts in their order, in float32 on the CPU.

        Texts are truncated at `max_length` or the model's own maximum, if that is smaller. See
        `encode_rows`.
        """
        return self.encode_rows(self.tokenize(texts, role, max_length), texts, on_batch)

    def tokenize(self, texts: Sequence[str], role: Role, max_length: int) -> list[list[int]]:
        """Return the token ids of texts, truncated as by `encode`."""
        longest = int(min(max_length, self.max_length))
        return token_ids(self.tokenizer, texts, role, self.encoding, longest)

    @torch.inference_mode()
    def encode_rows(
        self,
        rows: Sequence[Sequence[int]],
        texts: Sequence[str],
        on_batch: Callable[[int], Any] | None = None,
    ) -> Tensor:
        """Return embeddings (N, D) of the token ids of texts, in float32 on the CPU.

        Batches have a fixed number of tokens and texts of similar length, so there is little
        padding. `on_batch` is called after each batch with its number of texts.

        Raises:
            RevelaError: an embedding is zero or not finite; the message gives the text.
        """
        device = self.model.device
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]), reverse=True)
        embeddings: list[Tensor] = [torch.empty(0)] * len(rows)
        room = _TOKENS_PER_BATCH[device.type]

        def send(tensor: Tensor) -> Tensor:
            pinned = tensor.pin_memory() if device.type == "cuda" else tensor
            return pinned.to(device, non_blocking=True)

        def finish(batch: list[int], output: Tensor, copied: torch.cuda.Event | None) -> None:
            if copied:
                copied.synchronize()
            wrong = ~output.isfinite().all(1) | (output == 0).all(1)
            if bool(wrong.any()):
                bad = batch[int(wrong.nonzero()[0])]
                raise RevelaError(f"the embedding of {texts[bad][:80]!r} is zero or not finite")
            for index, embedding in zip(batch, output, strict=True):
                embeddings[index] = embedding
            if on_batch:
                on_batch(len(batch))

        running: list[tuple[list[int], Tensor, torch.cuda.Event | None]] = []
        while order:
            size = max(1, room // (len(rows[order[0]]) + _PAD_MULTIPLE))
            batch, order = order[:size], order[size:]
            ids, mask = pad([rows[i] for i in batch], self.tokenizer.pad_token_id)
            lengths = [len(rows[i]) for i in batch]
            output = self(send(ids), send(mask), lengths).to("cpu", non_blocking=True)
            on_gpu = device.type == "cuda"
            copied = torch.cuda.current_stream(device).record_event() if on_gpu else None
            running.append((batch, output, copied))
            if len(running) > 1:  # meanwhile a GPU computes the next batch
                finish(*running.pop(0))
        for done in running:
            finish(*done)
        return torch.stack(embeddings)


# ---------------------------------------------------------------------------- loading


def load_tokenizer(name: str, revision: str | None = None) -> Any:
    """Load a backbone's tokenizer; see `load_model` for the errors."""
    from transformers import AutoTokenizer

    check_model_folder(name)
    with explained("model", name):
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def load_model(
    name: str, causal: bool = False, revision: str | None = None, dtype: torch.dtype = torch.float32
) -> Any:
    """Load a backbone, without its head unless `causal`; an adapter is merged into its own.

    Raises:
        RevelaError: the model is missing, gated, broken, or the hub cannot be reached.
    """
    from transformers import AutoModel, AutoModelForCausalLM

    check_model_folder(name)
    if base := adapter_base(name, revision):
        with zero.unsharded():  # merging needs whole weights
            adapted = load_adapter(load_model(base, causal, dtype=dtype), name, revision)
            return adapted.merge_and_unload()
    loader = AutoModelForCausalLM if causal else AutoModel
    options = {"dtype": dtype, "use_safetensors": True, "output_loading_info": True}
    with explained("model", name):
        try:
            model, info = loader.from_pretrained(name, revision=revision, **options)
        except OSError as error:
            # Older models have pickled weights only; the hub's bot has converted most of them.
            converted = "safetensors" in str(error) and not revision and converted_revision(name)
            if not converted:
                raise
            model, info = loader.from_pretrained(name, revision=converted, **options)
    own = (getattr(model.config, "auto_map", None) or {}).get("AutoModel", "")
    stock = type(model).__name__
    if not causal and own.rpartition(".")[2] not in ("", stock):
        raise RevelaError(
            f"model {name!r} has code of its own ({own}), which is never run; {stock} of "
            "transformers would give other vectors"
        )
    # transformers initialises them at random; a pooler is not used here.
    missing = sorted(weight for weight in info["missing_keys"] if "pooler" not in weight)
    if missing:
        raise RevelaError(f"model {name!r} lacks {len(missing)} of its weights, e.g. {missing[0]}")
    return model


def adapter_base(name: str, revision: str | None = None) -> str | None:
    """Return the folder or hub name of an adapter's backbone, or None if it is no adapter.

    Raises:
        RevelaError: the adapter's settings cannot be read.
    """
    settings = read_model_json(name, "adapter_config.json", revision)
    if settings is None:
        return None
    with reading(name, "an adapter"):
        if not (base := settings["base_model_name_or_path"]):
            raise ValueError("its adapter_config.json names no base_model_name_or_path")
        return str(base)


def load_adapter(model: Any, name: str, revision: str | None = None, trained: bool = False) -> Any:
    """Put the LoRA weights of a folder or of the hub on a model, to be `trained` further if set.

    Raises:
        RevelaError: as `load_model`, or the adapter belongs to another model.
    """
    from peft import PeftModel

    with explained("adapter", name), warnings.catch_warnings():
        # peft only warns, and leaves the backbone unchanged.
        warnings.filterwarnings("error", "Found missing adapter keys")
        try:
            return PeftModel.from_pretrained(model, name, revision=revision, is_trainable=trained)
        except UserWarning as error:
            raise RevelaError(
                f"adapter {name!r} does not fit {type(model).__name__}: {str(error)[:150]}"
            ) from error


def load_encoder(model: EncoderModel, precision: str, device: str) -> Encoder:
    """Load a trained or pretrained encoder for inference; for `precision` see `native_dtype`."""
    revision = None if model.adapter else model.revision
    backbone = load_model(model.retriever, revision=revision, dtype=native_dtype(precision))
    if model.adapter:
        backbone = load_adapter(backbone, model.adapter, model.revision).merge_and_unload()
    tokenizer, encoding, own = load_encoding(model)
    check_vocabulary(model.retriever, backbone, tokenizer)
    longest = min(own or math.inf, positions(backbone))
    return Encoder(backbone, tokenizer, encoding, longest).to(device).eval()


def load_encoding(model: EncoderModel) -> tuple[Any, Encoding, int | None]:
    """Return a model's tokenizer, its encoding, and its maximum length if it has one.

    The encoding is that of its sentence-transformers files, if it has any, else the default of an
    experiment; keys set in the configuration take precedence.

    Raises:
        RevelaError: as `load_model`, or the files describe an unsupported encoding.
    """
    source, revision = model.retriever, None if model.adapter else model.revision
    if model.adapter and read_model_json(model.adapter, "modules.json", model.revision):
        source, revision = model.adapter, model.revision
    tokenizer = load_tokenizer(source, revision)
    own, length = read_encoding(source, revision, tokenizer) or (Encoding(), None)
    encoding = own.model_copy(update=model.encoding.model_dump(exclude_none=True))
    known = tokenizer.get_vocab()
    # A prefix's tokens, such as UniXcoder's modes, stay whole: few models declare them.
    for token in re.findall(r"<\S+?>", encoding.query_prefix + encoding.passage_prefix):
        if token in known:
            tokenizer.add_tokens(token, special_tokens=True)
    return tokenizer, encoding, model.max_length or length


def add_lora(model: Any, lora: Lora, seed: int) -> Any:
    """Freeze a backbone and put trainable low-rank adapters (in float32) on it.

    Raises:
        RevelaError: a target matches no module, or none that supports an adapter, or the rank is
            larger than the widest target.
    """
    from peft import LoraConfig, get_peft_model

    modules = {
        name.rpartition(".")[2]: (getattr(one, "in_features", 0), getattr(one, "out_features", 0))
        for name, one in model.named_modules()
        if any(True for _ in one.parameters(recurse=False))
    }
    for target in lora.targets:
        check_name("lora.targets", "module", target, modules)
    if lora.rank > (width := max(max(modules[target]) for target in lora.targets)) > 0:
        raise RevelaError(f"lora.rank: {lora.rank} is larger than the widest target, {width}")
    torch.manual_seed(seed)
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=lora.targets
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise RevelaError(f"lora.targets: {error}") from error


def continue_lora(model: Any, name: str, lora: Lora) -> Any:
    """Put the adapter of a folder or of the hub on its backbone, to be trained further.

    Raises:
        RevelaError: as `load_adapter`, or it was trained with other settings.
    """
    from peft import LoraConfig

    with explained("adapter", name):
        found = LoraConfig.from_pretrained(name)
    theirs = (found.r, found.lora_alpha, found.lora_dropout, set(found.target_modules))
    if theirs != (lora.rank, lora.alpha, lora.dropout, set(lora.targets)):
        raise RevelaError(
            f"adapter {name!r} has rank {found.r}, alpha {found.lora_alpha}, dropout "
            f"{found.lora_dropout} and targets {', '.join(sorted(found.target_modules))}; set lora "
            "to the same values to train it further"
        )
    return load_adapter(model, name, trained=True)


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


def native_dtype(precision: str) -> torch.dtype:
    """Return the dtype of a precision: bfloat16 only if the device supports it.

    CPUs compute in float32, so that results agree between processors, many of which are slower in
    bfloat16; REVELA_CPU_BFLOAT16=1 in the environment enables bfloat16 on those that do not emulate
    it.
    """
    if torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = os.environ.get("REVELA_CPU_BFLOAT16") == "1" and _cpu_has_bfloat16()
    return torch.bfloat16 if precision == "bfloat16" and native else torch.float32


def _cpu_has_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
