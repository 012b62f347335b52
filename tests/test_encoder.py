"""The encoder: what it asks of its backbone."""

import pytest

from revela.common.errors import RevelaError
from revela.config.steps import Lora
from revela.encoder import add_lora, load_model
from tests.conftest import encoder_of


def test_no_keys_and_values_are_kept_for_a_next_token(backbone):
    encoder = encoder_of(backbone)
    outputs = []
    encoder.model.register_forward_hook(lambda _module, _args, output: outputs.append(output))
    encoder.encode(["one text"], "query", 16)
    assert [output.past_key_values for output in outputs] == [None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": ["q_proj", "w_proj"]}, r"lora\.targets: unknown module 'w_proj'; did you"),
        ({"rank": 999}, r"lora\.rank: 999 is larger than the widest target, \d+"),
    ],
)
def test_adapters_that_would_not_be_what_they_say_are_refused(backbone, change, message):
    lora = Lora.model_validate({"rank": 4, "targets": ["q_proj"]} | change)
    with pytest.raises(RevelaError, match=message):
        add_lora(load_model(str(backbone)), lora, seed=0)
