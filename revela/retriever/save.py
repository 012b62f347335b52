"""Reads and writes a model's encoding: the files that determine how a text becomes a vector.

They are the files of sentence-transformers (modules, prompts and similarity), in which a folder
gives the same vectors. The tokenizer sets the end-of-sequence token and the maximum length.
"""

from pathlib import Path
from typing import Any

from revela.attention import zero
from revela.common.errors import RevelaError, reading
from revela.common.hub import read_model_json
from revela.config.encoding import Encoding

_POOLING = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
# Before version 5 of sentence-transformers each mode had its own switch.
_SWITCHES = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
_SIMILARITIES = {"cosine": True, "dot": False, None: True}  # whether embeddings are normalized
_MAX_LENGTH = 2048  # tokens of a text in evaluation, as in the paper
_NO_LIMIT = 1_000_000  # tokenizers without a maximum length report a larger one


def read_encoding(
    name: str, revision: str | None, tokenizer: Any
) -> tuple[Encoding, int | None] | None:
    """Return the encoding and the maximum length that the files of a folder or hub model set.

    None if it has no sentence-transformers files.

    Raises:
        RevelaError: the files describe an encoding that `Encoder` does not support.
    """
    modules = read_model_json(name, "modules.json", revision)
    if modules is None:
        return None
    with reading(f"{name}/modules.json", "a list of modules"):
        folders = {module["type"].rpartition(".")[2]: module["path"] for module in modules}
    known = {"Transformer", "Pooling", "Normalize"}
    if wrong := (set(folders) - known) or ({"Transformer", "Pooling"} - set(folders)):
        verb = "is not supported" if wrong <= set(folders) else "is missing"
        raise RevelaError(f"model {name!r}: sentence-transformers module {min(wrong)} {verb}")
    pooling = read_model_json(name, f"{folders['Pooling']}/config.json", revision) or {}
    switched = [_SWITCHES.get(key, key) for key, on in pooling.items() if "mode_" in key and on]
    mode = str(pooling.get("pooling_mode") or ", ".join(switched))
    settings = read_model_json(name, "config_sentence_transformers.json", revision) or {}
    similarity = settings.get("similarity_fn_name")
    limits = read_model_json(name, "sentence_bert_config.json", revision) or {}
    lowered = limits.get("do_lower_case") and tokenizer.tokenize("A") != tokenizer.tokenize("a")
    for what, value, allowed in (
        ("pooling", mode, _POOLING),
        ("similarity", similarity, _SIMILARITIES),
        ("include_prompt", pooling.get("include_prompt", True), {True}),
        ("do_lower_case", bool(lowered), {False}),
    ):
        if value not in allowed:
            raise RevelaError(f"model {name!r}: {what} {value!r} is not supported")
    prompts = settings.get("prompts") or {}
    passages = [prompts[key] for key in ("document", "passage", "corpus") if prompts.get(key)]
    encoding = Encoding(
        query_prefix=prompts.get("query") or "",
        passage_prefix=passages[0] if passages else "",
        pooling=_POOLING[mode],
        append_eos=appends_eos(tokenizer),
        normalize="Normalize" in folders or _SIMILARITIES[similarity],
    )
    length = limits.get("max_seq_length") or tokenizer.model_max_length
    return encoding, length if length < _NO_LIMIT else None


def check_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    """Raise a `RevelaError` if a tokenizer's ids have no embedding: it is another model's.

    Special tokens may have none, unless every text needs them.
    """
    special = set(tokenizer.all_special_ids) - {tokenizer.eos_token_id, tokenizer.pad_token_id}
    last = max(set(tokenizer.get_vocab().values()) - special)
    if last >= (rows := model.config.get_text_config().vocab_size):
        raise RevelaError(
            f"model {name!r}: its tokenizer has ids up to {last}, but it has {rows} embeddings"
        )


def appends_eos(tokenizer: Any) -> bool:
    """Return whether a tokenizer itself ends every text with its end-of-sequence token."""
    # Not of an empty text, whose last token may be a BOS that is also the EOS.
    return tokenizer("x")["input_ids"][-1:] == [tokenizer.eos_token_id]


def write_encoding(
    folder: Path, tokenizer: Any, encoding: Encoding, positions: float, longest: int
) -> None:
    """Make a folder of weights, or of an adapter, a sentence-transformers model.

    It gets a copy of the backbone's tokenizer that strips texts and appends the EOS, limited to the
    model's `positions` (infinity without a limit), and to 2048 tokens or to those of the `longest`
    training text.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    limit = int(min(positions, tokenizer.model_max_length, max(longest, _MAX_LENGTH)))
    _standalone(tokenizer, encoding.append_eos, limit).save_pretrained(folder)
    with zero.unsharded():
        transformer = modules.Transformer(
            str(folder),
            # The weights are already in the folder; their shapes suffice.
            model_kwargs={"device_map": "meta"},
            # Otherwise texts become chat messages if the tokenizer has a chat template.
            modality_config={
                "text": {"method": "forward", "method_output_name": "last_hidden_state"}
            },
            module_output_name="token_embeddings",
        )
    vars(transformer)["save"] = transformer.save_config
    mode = next(theirs for theirs, ours in _POOLING.items() if ours == encoding.pooling)
    pooling = modules.Pooling(transformer.get_embedding_dimension(), mode)
    SentenceTransformer(
        modules=[transformer, pooling, *([modules.Normalize()] if encoding.normalize else [])],
        prompts={"query": encoding.query_prefix, "document": encoding.passage_prefix},
        similarity_fn_name="cosine" if encoding.normalize else "dot",
        device="meta",
    ).save(str(folder), create_model_card=False)


def _standalone(tokenizer: Any, append_eos: bool, max_length: int) -> Any:
    """Return a copy of a fast tokenizer that itself strips texts and appends the EOS."""
    from tokenizers import Tokenizer, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    strip = normalizers.Strip()
    backend.normalizer = normalizers.Sequence([strip, *filter(None, [backend.normalizer])])
    if append_eos and not appends_eos(tokenizer):
        # The tokens before a text and the EOS after it must be in one template.
        encoded = backend.encode("x")
        before = encoded.tokens[: encoded.special_tokens_mask.index(0)]
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", tokenizer.eos_token],
            special_tokens=[(t, backend.token_to_id(t)) for t in {*before, tokenizer.eos_token}],
        )
    copy = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_length,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        **tokenizer.special_tokens_map,
    )
    # Otherwise AutoProcessor uses Qwen2's own class, whose normalizer is not the file's.
    copy._set_processor_class("PreTrainedTokenizerFast")
    return copy
