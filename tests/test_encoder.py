"""The encoder: how it calls its backbone."""

from tests.conftest import encoder_of


def test_no_keys_and_values_are_kept_for_a_next_token(backbone):
    encoder = encoder_of(backbone)
    outputs = []
    encoder.model.register_forward_hook(lambda _module, _args, output: outputs.append(output))
    encoder.encode(["one text"], "query", 16)
    assert [output.past_key_values for output in outputs] == [None]
