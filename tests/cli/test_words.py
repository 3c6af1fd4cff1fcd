"""Names and options of commands: the same words mean the same to each."""

from pathlib import Path

import pytest

from bnrecon.cli import words
from bnrecon.runtime.errors import UserError


def test_path_with_an_equals_sign_is_a_name():
    Path("a=b").mkdir()
    assert words.split(["a=b", "outputs=c"], ("outputs",)) == (["a=b"], {"outputs": "c"})
    with pytest.raises(UserError, match="a=c: Allowed: outputs"):
        words.split(["a=c"], ("outputs",))


@pytest.mark.parametrize(
    "words", [["status"], ["cancel", "giannou2023"], ["ls"], ["compare", "a", "b"], ["report"]]
)
def test_unknown_home_folder_is_refused(refused, words):
    refused(*words, "outputs=~nobody_at_all", line="'~nobody_at_all': no such folder; give the")


@pytest.mark.parametrize("name", ["cancel", "status", "ls", "compare"])
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["outputs=a", "outputs=b"], "outputs= is given twice"),
        (["output=a"], "output=a: did you mean 'outputs'?"),
    ],
)
def test_mistake_has_the_same_answer_everywhere(refused, name, words, line):
    refused(name, *words, line=line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["burkholz"], "burkholz: no such study or sweep in outputs; did you mean 'burkholz2024'?"),
        (["burkholz2024"], "no folder outputs here"),
        (["burkholz2024", "outputs=.", "scale=smok"], "scale=smok: did you mean 'smoke'?"),
    ],
)
def test_mistake_in_what_to_cancel_is_one_line(refused, words, line):
    refused("cancel", *words, line=line)
