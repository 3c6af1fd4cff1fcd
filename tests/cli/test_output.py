"""Products go to standard output, log messages to standard error, and -q and -v choose which."""

import io
import logging

import pytest
from tqdm import tqdm

from bnrecon.cli import exit_codes, output
from bnrecon.runtime.errors import UserError

LEVELS = {
    logging.WARNING: ["warning: look", "bnrecon: no"],
    logging.INFO: ["so far", "warning: look", "bnrecon: no"],
    logging.DEBUG: ["much", "so far", "warning: look", "bnrecon: no"],
}


@pytest.mark.parametrize("level", LEVELS, ids=logging.getLevelName)
def test_a_level_shows_what_is_above_it(capsys, level):
    logger = logging.getLogger("bnrecon.run.anything")
    with output.log_to_stderr(level):
        logger.debug("much")
        logger.info("so far")
        logger.warning("look")
        logger.error("no")
    captured = capsys.readouterr()
    assert captured.err.splitlines() == LEVELS[level]
    assert captured.out == ""


def test_commands_within_commands_show_a_message_once(capsys):
    with output.log_to_stderr():
        with output.log_to_stderr(logging.DEBUG):
            logging.getLogger("bnrecon.data").info("once")
        logging.getLogger("bnrecon.data").info("twice")
    assert capsys.readouterr().err == "once\ntwice\n"


def test_a_message_does_not_break_a_progress_bar(capsys):
    bar = tqdm(total=2, file=io.StringIO())
    with output.log_to_stderr():
        logging.getLogger("bnrecon.data").info("a line")
    bar.close()
    assert capsys.readouterr().err.splitlines() == ["a line"]


TRAIN = ["train", "scale=smoke", "target.groups=[1]", "train.epochs=1", "outputs=out"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (TRAIN, True),
        (["-v", *TRAIN], True),
        (["-q", *TRAIN], False),
        ([*TRAIN, "--quiet"], False),
        (["run", "-mq", *TRAIN[1:]], False),
        (["run", "-mv", *TRAIN[1:]], True),
    ],
    ids=["default", "verbose", "quiet", "quiet behind", "quiet sweep", "verbose sweep"],
)
def test_progress_is_shown_unless_it_is_to_be_quiet(succeed, words, shown):
    out, err = succeed(*words)
    assert ("epoch 1/1" in err) == shown
    assert "epoch" not in out
    assert out.splitlines()[-1].startswith(("out/targets/", "out/sweeps/"))


# Tab and newline are a layout's own; the others command a terminal or turn text around.
CONTROLS = [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F)]
CONTROLS = {*map(chr, [*CONTROLS, *range(0x2066, 0x206A)])}


def test_control_characters_of_values_are_shown_as_escapes(capsys, command):
    value = "".join(sorted(CONTROLS)) + "é\u0301 \u200d"
    output.write(f"a\tb\n{value}")
    with output.log_to_stderr():
        logging.getLogger("bnrecon.run").warning("%s", value)
        exit_codes.report(UserError(value))
    for text in capsys.readouterr():
        assert not CONTROLS & set(text)
        assert r"\x00\x01" in text
        assert r"\r\x0e" in text
        assert r"\x9b" in text
        assert r"\u202e" in text
        assert text.endswith("é\u0301 \u200d\n")
    output.write("a\tb\nc")
    assert capsys.readouterr().out == "a\tb\nc\n"
    for words in (
        ["ru\x1bn"],
        ["run", "-\x1b"],
        ["run", "a\x9b=1"],
        ["ls", "\x1b"],
        ["tables", "\x1b"],
    ):
        code, _, err = command(*words)
        assert code == 2
        assert not CONTROLS & set(err)
        assert r"\x1b" in err or r"\x9b" in err


def test_a_library_user_sees_warnings_only(process):
    start = """
import sys, logging
logging.getLogger("bnrecon.run").info("progress")
logging.getLogger("bnrecon.run").warning("look")
"""
    assert process("--version", start=start).stderr == "look\nFalse\n"
