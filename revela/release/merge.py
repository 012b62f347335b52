"""Exports a self-contained retriever, with LoRA weights merged into the backbone."""

import shutil
from pathlib import Path

from revela.common.errors import RevelaError
from revela.common.outputs import atomic_output, check_ours
from revela.config.evaluation import EncoderModel
from revela.config.names import ModelRef
from revela.encoder import load_encoder
from revela.release.card import make_card
from revela.release.check import check_folder, check_is_retriever


def export(model: Path, output: Path) -> dict[str, float]:
    """Write a trained retriever with all its weights, in float32.

    Return the cosines of `check_folder`: the new folder in sentence-transformers, the old one here.

    Raises:
        RevelaError: the folder is not a retriever, the output is within it or has other
            files, or sentence-transformers encodes differently; nothing is written then.
    """
    check_is_retriever(model)
    if output.resolve().is_relative_to(model.resolve()):
        raise RevelaError(f"{output}: is in the folder to export; give another output")
    check_ours(output)
    trained = EncoderModel(kind="encoder", retriever=ModelRef(str(model)))
    merged = load_encoder(trained, "float32", "cpu").model
    with atomic_output(output) as folder:
        shutil.copytree(
            model, folder, ignore=shutil.ignore_patterns("adapter_*", "*.safetensors*", ".*")
        )
        merged.save_pretrained(folder)
        if card := make_card(model, str(output), merged=True):
            (folder / "README.md").write_text(card, encoding="utf-8")
        return check_folder(folder, trained)
