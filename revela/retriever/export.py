"""Exports a self-contained retriever, with LoRA weights merged into the backbone."""

from pathlib import Path

from revela.common.errors import RevelaError
from revela.common.outputs import atomic_output, check_ours
from revela.config.evaluation import EncoderModel
from revela.config.names import ModelRef
from revela.retriever.card import make_card
from revela.retriever.load import load_encoder
from revela.retriever.save import check_folder, check_is_retriever, save_encoder


def export(model: Path, output: Path) -> float:
    """Write a trained retriever with all its weights, in float32; return `check_folder`'s cosine.

    Raises:
        RevelaError: the folder is not a retriever, the output is within it or has other
            files, or sentence-transformers encodes differently; nothing is written then.
    """
    check_is_retriever(model)
    if output.resolve().is_relative_to(model.resolve()):
        raise RevelaError(f"{output}: is in the folder to export; give another output")
    check_ours(output)
    source = EncoderModel(kind="encoder", retriever=ModelRef(str(model)))
    merged = load_encoder(source, "float32", "cpu")
    with atomic_output(output) as folder:
        save_encoder(merged, folder, merged.state_dict())
        if card := make_card(model, str(output), merged=True):
            (folder / "README.md").write_text(card, encoding="utf-8")
        return check_folder(folder, model)
