"""The encoder: how it is loaded and calls its backbone."""

import json
import math
import shutil
from typing import get_args

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from bench.common import encoder_around
from revela.common.errors import RevelaError
from revela.config.encoding import EncodingKeys, Pooling
from revela.inbatch.packing import flash_takes
from revela.retriever import encode as encoding
from revela.retriever.encode import embed, encode, native_dtype, pad, positions, tokenize
from revela.retriever.load import load_tokenizer, read_encoder
from revela.retriever.source import Source
from revela.retriever.tokenizer import standalone
from tests.conftest import TEXTS, encoder_of, tiny_llama

CHUNKS = [[5, 9, 3, 7], [4, 4, 8], [6, 2, 11, 30, 7], [12]]


@pytest.fixture
def bert(tmp_path):
    """A tiny BERT with 16 positions and a token of a mode that is not declared as special."""
    words = ["[PAD]", "[UNK]", "word", "<mode>", "<", "mode", ">"]
    vocabulary = Tokenizer(models.WordLevel(dict(zip(words, range(7), strict=True)), "[UNK]"))
    vocabulary.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    options = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=vocabulary, **options).save_pretrained(
        tmp_path
    )
    shape = transformers.BertConfig(**SMALL, vocab_size=7, max_position_embeddings=16)
    transformers.BertModel(shape).save_pretrained(tmp_path)
    return tmp_path


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
PLAIN = {"pooling": "mean", "append_eos": False, "query_prefix": "", "passage_prefix": ""}


def test_odd_texts_of_a_bert(bert):
    """They end at its last position, an empty one has a vector, a prefix's token stays whole."""
    encoder = encoder_of(bert, **(PLAIN | {"query_prefix": "<mode> "}))
    long, longer = encode(encoder, ["word " * 16, "word " * 50], "query", 2048)
    assert torch.equal(long, longer)
    embeddings = encode(encoder, ["", "word", ""], "passage", 16)
    assert embeddings.isfinite().all()
    assert torch.equal(embeddings[0], embeddings[2])
    assert encoder.tokenizer("<mode> word")["input_ids"] == [3, 2]


def test_code_of_its_own_that_transformers_has_too_is_no_error(backbone, tmp_path):
    folder = shutil.copytree(backbone, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    own = {"auto_map": {"AutoModel": "modeling.LlamaModel"}}
    (folder / "config.json").write_text(json.dumps(config | own))
    encoder_of(folder)


@pytest.mark.parametrize("native", [True, False])
def test_bfloat16_is_for_devices_that_do_not_emulate_it(monkeypatch, native):
    expected = torch.bfloat16 if native else torch.float32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: native or including_emulation,
    )
    assert native_dtype("bfloat16") == expected
    # A CPU also has to be asked for it.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("revela.retriever.encode._cpu_has_bfloat16", lambda: native)
    monkeypatch.delenv("REVELA_CPU_BFLOAT16", raising=False)
    assert native_dtype("bfloat16") == torch.float32
    monkeypatch.setenv("REVELA_CPU_BFLOAT16", "1")
    assert native_dtype("bfloat16") == expected
    assert native_dtype("float32") == torch.float32


def test_token_ids_end_with_one_eos_and_keep_to_the_length(backbone):
    encoder = read_encoder(Source(str(backbone)), EncodingKeys())
    tokenizer = encoder.tokenizer
    rows = tokenize(encoder, [*TEXTS, ""], "query", 12)
    assert all(ids[-1] == tokenizer.eos_token_id for ids in rows)
    assert all(ids.count(tokenizer.eos_token_id) == 1 for ids in rows)
    assert max(map(len, rows)) == 12
    assert tokenizer.decode(rows[0]).startswith("Query: The")
    passage = tokenize(encoder, TEXTS[:1], "passage", 99)[0]
    assert tokenizer.decode(passage) == f"Passage: {TEXTS[0]}<|endoftext|>"


def test_an_eos_that_begins_texts_or_is_missing(backbone):
    tokenizer = load_tokenizer(Source(str(backbone)))
    eos = tokenizer.eos_token
    template = processors.TemplateProcessing(
        single=[eos, "$A"], special_tokens=[(eos, tokenizer.eos_token_id)]
    )
    tokenizer.backend_tokenizer.post_processor = template
    ids = standalone(tokenizer, True)(TEXTS[0], truncation=True, max_length=12)["input_ids"]
    assert (len(ids), ids[0], ids[-1]) == (12, *[tokenizer.eos_token_id] * 2)
    tokenizer.eos_token = None
    with pytest.raises(RevelaError, match=r"no EOS token: set encoding\.append_eos: false"):
        standalone(tokenizer, True)


def test_positions_of_models():
    shape = SMALL | {"vocab_size": 9, "max_position_embeddings": 42}
    assert positions(transformers.RobertaModel(transformers.RobertaConfig(**shape))) == 40
    assert positions(transformers.BertModel(transformers.BertConfig(**shape))) == 42
    bloom = transformers.BloomConfig(hidden_size=8, n_layer=1, n_head=2, vocab_size=9)
    assert positions(transformers.BloomModel(bloom)) == math.inf


def test_the_first_half_is_of_prefix_and_text(backbone):
    encoder = read_encoder(Source(str(backbone)), EncodingKeys())
    whole = tokenize(encoder, TEXTS, "query", 99)
    half = tokenize(encoder, TEXTS, "query", 99, first_half=True)
    for full, first in zip(whole, half, strict=True):
        assert first == [*full[: (len(full) - 1) // 2], encoder.tokenizer.eos_token_id]


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_encoding_many_texts_equals_encoding_each(backbone, pooling, monkeypatch, both_ways):
    monkeypatch.setitem(encoding._TOKENS_PER_BATCH, "cpu", 150)  # several batches
    model = encoder_of(backbone, pooling=pooling)
    texts = [text * n for n, text in enumerate(TEXTS, start=1)]
    together = encode(model, texts, "passage", 64)
    alone = torch.cat([encode(model, [text], "passage", 64) for text in texts])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(len(texts)))


@pytest.mark.parametrize("pooling", ["lasttoken", "mean", "cls"])
def test_packed_embeddings_equal_padded_ones(pooling, request):
    ids, mask = pad(CHUNKS, 0)
    model = encoder_around(tiny_llama().model, pooling)
    found = []
    for way in ("padded", "packed"):
        if way == "packed":
            request.getfixturevalue("flash")
        model.zero_grad()
        embeddings = embed(model, ids, mask, [4, 3, 5, 1])
        (embeddings * torch.arange(64).view(4, 16)).sum().backward()
        found.append([embeddings, *(weight.grad for weight in model.parameters())])
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-5)


def test_a_text_without_a_token_has_an_embedding(both_ways):
    model = encoder_around(tiny_llama().model)
    assert embed(model, *pad([[], [5, 6]], 0)).isfinite().all()


def test_flash_takes_half_precision_on_a_gpu():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    model = tiny_llama(num_attention_heads=1, num_key_value_heads=1, hidden_size=248).bfloat16()
    wide = tiny_llama(num_attention_heads=1, num_key_value_heads=1, hidden_size=256).bfloat16()
    takes = [flash_takes(model, gpu), flash_takes(model, cpu), flash_takes(wide, gpu)]
    assert takes == [True, False, False]
    assert not flash_takes(model.float(), gpu)


def test_bidirectional_models_are_not_packed(flash):
    bert = transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=50)).eval()
    decoder = tiny_llama(vocab_size=50).model.eval()
    decoder.config.is_causal = False
    for model in (bert, decoder):
        ids, mask = pad(CHUNKS, 0)
        embeddings = embed(encoder_around(model, "cls", normalize=False), ids, mask)
        output = model(input_ids=ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(embeddings, output[:, 0])
