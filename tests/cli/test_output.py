"""Results go to standard output, messages to standard error; -q and -v select them."""

import errno
import importlib
import io
import logging
import os
import sys

import pytest

from bnrecon.cli import exit_codes, output
from bnrecon.runtime.errors import UserError


@pytest.mark.parametrize(
    ("level", "shown"), [(logging.DEBUG, 4), (logging.INFO, 3), (logging.WARNING, 2)]
)
def test_level_shows_messages_from_it_upwards(capsys, level, shown):
    logger = logging.getLogger("bnrecon.run.anything")
    with output.log_to_stderr(level):
        logger.debug("much")
        logger.info("so far")
        logger.warning("look")
        logger.error("no")
    captured = capsys.readouterr()
    lines = ["much", "so far", "warning: look", "bnrecon: no"]
    assert captured.err.splitlines() == lines[-shown:]
    assert captured.out == ""


@pytest.mark.parametrize("bars", [True, False])
def test_unwritable_message_is_dropped(monkeypatch, bars):
    def refuse(number):
        class Refusing(io.StringIO):
            def write(self, _):
                raise OSError(number, os.strerror(number))

        return Refusing()

    if bars:
        importlib.import_module("tqdm")
    else:
        monkeypatch.delitem(sys.modules, "tqdm", raising=False)
    monkeypatch.setattr(sys, "stderr", refuse(errno.ENOSPC))
    with output.log_to_stderr():
        assert exit_codes.report(UserError("width=0")) == 2
        monkeypatch.setattr(sys, "stderr", refuse(errno.EPIPE))
        with pytest.raises(BrokenPipeError):
            logging.getLogger("bnrecon.run").info("epoch 1")


TRAIN = ["train", "scale=smoke", "target.groups=[1]", "train.epochs=1", "outputs=out"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (TRAIN, True),
        (["-q", *TRAIN], False),
        ([*TRAIN, "--quiet"], False),
        (["run", "-mq", *TRAIN[1:]], False),
    ],
    ids=["default", "quiet", "quiet behind", "quiet sweep"],
)
def test_quiet_hides_progress(succeed, words, shown):
    out, err = succeed(*words)
    assert ("epoch 1/1" in err) == shown
    assert "epoch" not in out
    assert out.splitlines()[-1].startswith(("out/targets/", "out/sweeps/"))


# Tab and newline are layout; the others control a terminal or reverse text.
CONTROLS = [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F)]
CONTROLS = {*map(chr, [*CONTROLS, *range(0x2066, 0x206A)])}


def test_control_characters_in_values_are_escaped(capsys, command):
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
    for words in (["ru\x1bn"], ["run", "a\x9b=1"], ["ls", "\x1b"], ["tables", "\x1b"]):
        code, _, err = command(*words)
        assert code == 2
        assert not CONTROLS & set(err)
        assert r"\x1b" in err or r"\x9b" in err
