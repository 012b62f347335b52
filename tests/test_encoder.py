"""The encoder: how it is loaded and calls its backbone."""

import json
import shutil

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from revela.common.errors import RevelaError
from tests.conftest import encoder_of


def test_no_keys_and_values_are_kept_for_a_next_token(backbone):
    encoder = encoder_of(backbone)
    outputs = []
    encoder.model.register_forward_hook(lambda _module, _args, output: outputs.append(output))
    encoder.encode(["one text"], "query", 16)
    assert [output.past_key_values for output in outputs] == [None]


@pytest.fixture
def bert(tmp_path):
    """A tiny BERT with 16 positions and a token of a mode that is not declared as special."""
    words = ["[PAD]", "[UNK]", "word", "<mode>", "<", "mode", ">"]
    vocabulary = Tokenizer(models.WordLevel(dict(zip(words, range(7), strict=True)), "[UNK]"))
    vocabulary.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=vocabulary, pad_token="[PAD]", unk_token="[UNK]"
    )
    shape = transformers.BertConfig(
        vocab_size=7,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    folder = tmp_path / "bert"
    transformers.BertModel(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


PLAIN = {"pooling": "mean", "append_eos": False, "query_prefix": "", "passage_prefix": ""}


def test_texts_end_at_the_last_position_of_the_model(bert):
    encoder = encoder_of(bert, **PLAIN)
    long, longer = encoder.encode(["word " * 16, "word " * 50], "query", 2048)
    assert torch.equal(long, longer)


def test_an_empty_text_has_a_vector(bert):
    embeddings = encoder_of(bert, **PLAIN).encode(["", "word", ""], "passage", 16)
    assert embeddings.isfinite().all()
    assert torch.equal(embeddings[0], embeddings[2])


def test_a_token_of_a_prefix_stays_whole(bert):
    encoder = encoder_of(bert, **(PLAIN | {"query_prefix": "<mode> "}))
    assert encoder.tokenizer("<mode> word")["input_ids"] == [3, 2]


def test_a_model_with_code_of_its_own_is_an_error(backbone, tmp_path):
    folder = shutil.copytree(backbone, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    for own, refused in (("modeling.OwnModel", True), ("modeling.LlamaModel", False)):
        (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": own}}))
        if refused:
            with pytest.raises(RevelaError, match=r"code of its own \(modeling.OwnModel\)"):
                encoder_of(folder)
        else:
            encoder_of(folder)
