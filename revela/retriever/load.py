"""Loads a model from its source: weights, tokenizer, adapters, and the encoder around them."""

import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from sentence_transformers.util import import_from_string
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from revela.common.errors import RevelaError, check_name
from revela.common.hub import converted_revision, explained
from revela.config.encoding import Encoding, EncodingKeys
from revela.config.evaluation import EncoderModel
from revela.retriever.encode import native_dtype, pack_where_possible, positions
from revela.retriever.source import Source, check_model_folder
from revela.retriever.tokenizer import appends_eos, check_vocabulary, standalone

_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
# Shapes suffice; `load` brings the weights. transformers opens them all the same.
_ON_META: dict[str, Any] = {"device_map": "meta", "use_safetensors": True}
_POOLING = {"last": "lasttoken"}  # other names are the same
_SETTINGS = {
    "__version__",
    "default_prompt_name",  # for neither queries nor documents
    "model_type",
    "prompts",
    "requirements",
    "similarity_fn_name",
    "truncate_dim",
}
_NO_LIMIT = 1_000_000  # tokens; tokenizers without a maximum length report a larger one


def load_encoder(model: EncoderModel, precision: str, device: str) -> SentenceTransformer:
    """Load a trained or pretrained encoder for inference; for `precision` see `native_dtype`."""
    source, dtype = Source.of(model), native_dtype(precision)
    load = functools.partial(load_model, source, dtype=dtype)
    encoder = read_encoder(source, model.encoding, load, model.max_length)
    check_vocabulary(source.name, encoder)
    return encoder.to(device).eval()


def read_encoder(
    source: Source,
    keys: EncodingKeys,
    load: Callable[[type], Any] | None = None,
    max_length: int | None = None,
) -> SentenceTransformer:
    """Return the encoder that a model's files describe.

    Without sentence-transformers files it is the paper's; `keys` that are set take precedence.
    `load` gets the class of the transformer and returns it with weights; without it all weights
    stay on the meta device, which is enough to tokenize.

    Raises:
        RevelaError: the files are missing, gated or broken, or describe what cannot be computed.
    """
    home = source if source.modules or not source.base else source.base
    home.check_is_encoder()
    if not home.modules:
        keys = Encoding(**keys.model_dump(exclude_none=True))
    with explained("model", home.name):
        with unsharded():
            made = _own_modules(home) if home.modules else _paper_modules(home, keys)
            transformer, *rest = _changed(made, keys)
        settings = home.read("config_sentence_transformers.json") or {}
        it = f"model {home.name!r}"
        for key in settings:
            check_name(it, "setting of sentence-transformers", key, _SETTINGS)
        kind = settings.get("model_type", "SentenceTransformer")
        check_name(it, "type of model", kind, ["SentenceTransformer"])
        similarity: Any = settings.get("similarity_fn_name") or "cosine"
        if keys.normalize is not None:
            similarity = "cosine" if keys.normalize else "dot"
        check_name(it, "similarity", similarity, ["cosine", "dot"])
        if load:
            transformer.model = load(type(transformer.model))
        encoder = SentenceTransformer(
            modules=[transformer, *rest],
            prompts=_prompts(settings.get("prompts") or {}, keys),
            similarity_fn_name=similarity,
            truncate_dim=settings.get("truncate_dim"),
            device=str(next(transformer.model.parameters()).device),
        )
    transformer.model.config.use_cache = False  # it would copy all keys and values
    longest = max_length or encoder.max_seq_length or _NO_LIMIT
    encoder.max_seq_length = int(min(longest, _NO_LIMIT, positions(transformer.model)))
    known = encoder.tokenizer.get_vocab()
    # A prompt's tokens, such as UniXcoder's modes, stay whole: few models declare them.
    for token in re.findall(r"<\S+?>", "".join(filter(None, encoder.prompts.values()))):
        if token in known:
            encoder.tokenizer.add_tokens(token, special_tokens=True)
    for module in rest:
        module.float()  # as their input, whatever the transformer's precision is
    return pack_where_possible(encoder)


def _paper_modules(source: Source, keys: EncodingKeys) -> list[Any]:
    """Return the modules around a backbone without sentence-transformers files."""
    named = {"revision": source.revision}
    transformer = _from_safetensors(
        source,
        lambda revision: modules.Transformer(
            source.name,
            model_kwargs=_ON_META | {"revision": revision},
            config_kwargs=named,
            processor_kwargs=named,
            modality_config=_TEXT,  # no chat messages, if the tokenizer has a chat template
            module_output_name="token_embeddings",
        ),
    )
    transformer.processor = standalone(load_tokenizer(source), bool(keys.append_eos))
    return [transformer, modules.Pooling(transformer.get_embedding_dimension())]


def _own_modules(source: Source) -> list[Any]:
    """Return the modules of a model's sentence-transformers files."""
    made: list[Any] = []
    for entry in source.modules or []:
        kind: Any = import_from_string(entry["type"])
        if not made and kind is not modules.Transformer:
            raise RevelaError(f"model {source.name!r} begins with {kind.__name__}, no Transformer")
        if kind is modules.Dense and not source.find(f"{entry['path']}/model.safetensors"):
            raise RevelaError(f"model {source.name!r}: {entry['path']} has no safetensors weights")
        options: Any = {} if made else {"model_kwargs": dict(_ON_META)}
        load = functools.partial(kind.load, source.name, subfolder=entry["path"], **options)
        made.append(_from_safetensors(source, load))
    return made


def _changed(made: list[Any], keys: EncodingKeys) -> list[Any]:
    """Return modules with the settings of keys that are set."""
    transformer = made[0]
    if keys.append_eos and not appends_eos(transformer.tokenizer):
        transformer.processor = standalone(transformer.tokenizer, True)
    if keys.pooling:
        pooling = modules.Pooling(
            transformer.get_embedding_dimension(), _POOLING.get(keys.pooling, keys.pooling)
        )
        made = [pooling if isinstance(module, modules.Pooling) else module for module in made]
    if keys.normalize is not None:
        made = [module for module in made if not isinstance(module, modules.Normalize)]
        made += [modules.Normalize()] if keys.normalize else []
    return made


def _prompts(prompts: Mapping[str, str], keys: EncodingKeys) -> dict[str, str]:
    """Return the prompts of both roles, as `encode_query` and `encode_document` look for them."""
    query, passage = keys.query_prefix, keys.passage_prefix
    if query is None:
        query = prompts.get("query") or ""
    if passage is None:
        passages = map(prompts.get, ("document", "passage", "corpus"))
        passage = next(filter(None, passages), "")
    return {**prompts, "query": query, "document": passage}


# ---------------------------------------------------------------------------- weights


@contextlib.contextmanager
def unsharded() -> Iterator[None]:
    """Load models unsharded within the block, even at stage 3."""
    if "deepspeed" not in sys.modules:
        yield
        return
    from transformers.integrations import deepspeed

    kept = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        vars(deepspeed)["_hf_deepspeed_config_weak_ref"] = kept


def load_tokenizer(source: Source) -> Any:
    """Load a model's tokenizer; see `load_model` for the errors."""
    with explained("model", source.name):
        tokenizer = AutoTokenizer.from_pretrained(
            source.name, revision=source.revision, subfolder=source.subfolder
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def load_language_model(source: Source, dtype: torch.dtype = torch.float32) -> Any:
    """Load a causal language model with its head; see `load_model`."""
    source.check_is_language_model()
    return load_model(source, AutoModelForCausalLM, dtype)


def load_model(source: Source, kind: Any = AutoModel, dtype: torch.dtype = torch.float32) -> Any:
    """Load weights as a class of transformers; an adapter is merged into those of its base.

    Raises:
        RevelaError: the model is missing, gated, broken, or the hub cannot be reached.
    """
    if source.base:
        with unsharded():  # merging needs whole weights
            return load_adapter(load_model(source.base, kind, dtype), source).merge_and_unload()
    name, options = source.name, {"subfolder": source.subfolder, "dtype": dtype}
    options |= {"use_safetensors": True, "output_loading_info": True}
    load = functools.partial(kind.from_pretrained, name, **options)
    with explained("model", name):
        model, info = _from_safetensors(source, load)
    # transformers initialises them at random; a pooler is not used here.
    lacks = sorted(weight for weight in info["missing_keys"] if "pooler" not in weight)
    if lacks:
        raise RevelaError(f"model {name!r} lacks {len(lacks)} of its weights, e.g. {lacks[0]}")
    return model


def _from_safetensors(source: Source, load: Callable[..., Any]) -> Any:
    """Return what `load` makes of the `revision` of a model that has safetensors weights."""
    check_model_folder(source.name)
    try:
        return load(revision=source.revision)
    except OSError as error:
        # Older models have pickled weights only; the hub's bot has converted most of them.
        missing = "safetensors" in str(error) and not source.revision
        if not (missing and (converted := converted_revision(source.name))):
            raise
        return load(revision=converted)


def load_adapter(model: Any, source: Source, trained: bool = False) -> Any:
    """Put the LoRA weights of a source on a model, to be `trained` further if set.

    Raises:
        RevelaError: as `load_model`, or the adapter belongs to another model.
    """
    from peft import PeftModel

    name, options = source.name, {"revision": source.revision, "is_trainable": trained}
    with explained("adapter", name), warnings.catch_warnings():
        # peft only warns, and leaves the backbone unchanged.
        warnings.filterwarnings("error", "Found missing adapter keys")
        try:
            return PeftModel.from_pretrained(model, name, **options)
        except UserWarning as error:
            other = f"does not fit {type(model).__name__}: {str(error)[:150]}"
            raise RevelaError(f"adapter {name!r} {other}") from error
