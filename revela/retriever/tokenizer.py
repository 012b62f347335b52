"""Tokenizers: what they append, and a copy that strips texts and appends the EOS."""

from typing import Any

from revela.common.errors import RevelaError


def check_vocabulary(name: str, encoder: Any) -> None:
    """Raise a `RevelaError` if a tokenizer's ids have no embedding: it is another model's.

    Special tokens may have none, unless every text needs them.
    """
    tokenizer = encoder.tokenizer
    special = set(tokenizer.all_special_ids) - {tokenizer.eos_token_id, tokenizer.pad_token_id}
    last = max(set(tokenizer.get_vocab().values()) - special)
    if last >= (rows := encoder[0].model.config.get_text_config().vocab_size):
        raise RevelaError(
            f"model {name!r}: its tokenizer has ids up to {last}, but it has {rows} embeddings"
        )


def appends_eos(tokenizer: Any) -> bool:
    """Return whether a tokenizer itself ends every text with its end-of-sequence token."""
    # Not of an empty text, whose last token may be a BOS that is also the EOS.
    return tokenizer("x")["input_ids"][-1:] == [tokenizer.eos_token_id]


def standalone(tokenizer: Any, append_eos: bool) -> Any:
    """Return a copy of a fast tokenizer that itself strips texts and appends the EOS."""
    from tokenizers import Tokenizer, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    if append_eos and tokenizer.eos_token is None:
        raise RevelaError("the tokenizer has no EOS token: set encoding.append_eos: false")
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
        model_max_length=tokenizer.model_max_length,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        **tokenizer.special_tokens_map,
    )
    # Otherwise AutoProcessor uses Qwen2's own class, whose normalizer is not the file's.
    copy._set_processor_class("PreTrainedTokenizerFast")
    return copy
