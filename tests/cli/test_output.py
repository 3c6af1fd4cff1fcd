"""Products go to standard output, log messages to standard error, and -q and -v choose which."""

import io
import logging

import pytest
from tqdm import tqdm

from bnrecon.cli import output

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
def test_progress_is_shown_unless_it_is_to_be_quiet(command, words, shown):
    code, out, err = command(*words)
    assert code == 0
    assert ("epoch 1/1" in err) == shown
    assert "epoch" not in out
    assert out.splitlines()[-1].startswith(("out/targets/", "out/sweeps/"))


def test_a_library_user_sees_warnings_only(process):
    start = """
import sys, logging
logging.getLogger("bnrecon.run").info("progress")
logging.getLogger("bnrecon.run").warning("look")
"""
    assert process("--version", start=start).stderr == "look\nFalse\n"
