"""The languages of BM25."""

import math
import unicodedata

import pytest

from revela.config.evaluation import Bm25Model
from revela.evaluation import measure
from revela.evaluation.benchmarks import local_task, write_collection
from revela.evaluation.bm25 import guess_language
from tests.evaluation.common import rows_of, searcher_of

# The Universal Declaration of Human Rights.
SENTENCES = {
    "danish": "Alle mennesker er født frie og lige i værdighed og rettigheder.",
    "dutch": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren.",
    "english": "All human beings are born free and equal in dignity and rights.",
    "french": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "german": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "italian": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.",
    "norwegian": "De er utstyrt med fornuft og bør handle mot hverandre i brorskapets ånd.",
    "portuguese": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos.",
    "russian": "Они должны поступать в отношении друг друга в духе братства.",
    "spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "swedish": "Alla människor är födda fria och lika i värde och rättigheter.",
    "turkish": "Akıl ve vicdana sahiptirler ve birbirlerine karşı kardeşlik ile.",
}
UNKNOWN = [
    "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan.",
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "长城是中国古代的军事防御工程。",
    "def close(self): return [x for x in self.sockets if x is not None and x.open]",
    "12 34",
]


@pytest.mark.parametrize(
    ("language", "text"), [*SENTENCES.items(), *(("english", text) for text in UNKNOWN)]
)
def test_stop_words_tell_the_language(language, text):
    assert guess_language([text]) == language
    assert guess_language([unicodedata.normalize("NFD", text)] * 2) == language


@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize(("language", "score"), [("english", 0), ("german", math.log(2) / 2.5)])
def test_bm25_stems_in_its_language(tmp_path, language, score, restricted):
    """Of two documents of two terms each, one has the query's; in English neither has it."""
    documents = [("d0", "", "Die Häuser am Fluss."), ("d1", "", "Das Ufer bei der Brücke.")]
    write_collection(tmp_path / "mine", documents, [("q", "Was ist ein Haus?")], [("q", "d0", 1)])
    task = local_task("mine", tmp_path / "mine", tmp_path)
    if restricted:
        task.dataset["default"]["test"]["top_ranked"] = {"q": ["d0"]}
    model = Bm25Model(kind="bm25s", language=language)
    rows = rows_of(measure.evaluate(searcher_of(model, tmp_path), task).run)
    scores = {row[2]: float(row[4]) for row in rows}
    assert scores == pytest.approx({"d0": score} | ({} if restricted else {"d1": 0}), abs=1e-6)
