"""Logged numbers reach their file and every tracker, and failing trackers harm no work."""

import contextlib
import json
import logging

import pytest

from bnrecon.runtime import extras, locks
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.tracking import METRICS, NO_TRACKERS, Trackers


class Listed:
    """A tracker that records its calls; ``broken`` names the call that fails."""

    def __init__(self, broken=None):
        self.broken, self.calls = broken, []

    @contextlib.contextmanager
    def __call__(self, run, config, anew):
        self._call("open", run, dict(config), anew)
        yield lambda *row: self._call("log", *row)
        self._call("close")

    def _call(self, name, *what):
        if name == self.broken:
            raise OSError(28, "No space left on device")
        self.calls.append((name, *what))

    def rows(self):
        return [call[1:] for call in self.calls if call[0] == "log"]


def log_some(trackers, epochs=2):
    with trackers.track("runs/a", {"train": {"lr": 0.1}}) as tracked:
        for number in range(1, epochs + 1):
            tracked.log("epoch", number, {"loss": 1 / number})
        tracked.log("layer", 1, {"residual/seed-7": 1e-12})
        tracked.log("layer", 1, {"relative_error/seed-7": 2e-12})
        tracked.log("result", 0, {"accuracy": 99.0})


ROWS = [
    (0, "epoch", 1, {"epoch/loss": 1.0}),
    (1, "epoch", 2, {"epoch/loss": 0.5}),
    (2, "layer", 1, {"layer/residual/seed-7": 1e-12}),
    (3, "layer", 1, {"layer/relative_error/seed-7": 2e-12}),
    (4, "result", 0, {"result/accuracy": 99.0}),
]


def test_resumed_run_sends_only_new_rows(tmp_path):
    log_some(Trackers({"listed": Listed()}, tmp_path))
    again = Listed()
    log_some(Trackers({"listed": again}, tmp_path), epochs=3)
    assert again.calls[0][-1] is False
    assert again.rows() == [(5, "epoch", 3, {"epoch/loss": 1 / 3})]


def test_complete_tracker_is_opened_only_for_an_export(tmp_path):
    log_some(Trackers({"listed": Listed()}, tmp_path))
    again, exported = Listed(), Listed()
    log_some(Trackers({"listed": again}, tmp_path))
    assert not again.calls
    log_some(Trackers({"listed": exported}, tmp_path, whole=True))
    assert exported.rows() == ROWS
    assert exported.calls[0][-1] is True


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("earlier", [False, True])
def test_everything_is_sent_and_replaces_an_earlier_run_of_this_name(earlier, whole, tmp_path):
    if earlier:
        with Trackers({"listed": Listed()}, tmp_path).track("runs/a", {}) as tracked:
            for epoch, loss in enumerate((1.0, 0.4, 0.3), 1):
                tracked.log("epoch", epoch, {"loss": loss})
            tracked.log("layer", 1, {"residual/seed-7": 2e-12})
    listed = Listed()
    log_some(Trackers({"listed": listed}, tmp_path, whole=whole))
    assert listed.calls[0] == ("open", "runs/a", {"train.lr": 0.1}, True)
    assert listed.rows() == ROWS
    assert listed.calls[-1] == ("close",)
    lines = (tmp_path / "runs/a" / METRICS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{r[1]: r[2], **r[3]} for r in ROWS]


@pytest.mark.parametrize("damage", ["torn", "garbage", "[1, 2]", '{"epoch": "one"}', "{}"])
def test_torn_or_invalid_row_is_logged_again_and_the_rest_kept(damage, tmp_path, caplog):
    log_some(Trackers({"listed": Listed()}, tmp_path))
    path = tmp_path / "runs/a" / METRICS
    text = path.read_text()
    *others, _ = text.splitlines(keepends=True)
    path.write_text(text[:-9] if damage == "torn" else "".join([*others, f"{damage}\n"]))
    again = Listed()
    log_some(Trackers({"listed": again}, tmp_path))
    assert again.rows() == ROWS[-1:]
    assert path.read_text() == text
    assert ("1 damaged rows are skipped" in caplog.text) == (damage != "torn")


@pytest.mark.parametrize("call", ["open", "log", "close"])
def test_failing_tracker_is_reported_once_and_others_continue(call, tmp_path, caplog):
    broken, good = Listed(broken=call), Listed()
    trackers = Trackers({"broken": broken, "good": good}, tmp_path)
    for _ in range(2):
        log_some(trackers)
    assert good.rows() == ROWS
    warnings = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "broken failed" in warnings[0]
    assert "No space left on device" in warnings[0]
    assert "bnrecon export" in warnings[0]


def test_error_of_the_work_is_not_a_trackers(tmp_path):
    listed = Listed()
    trackers = Trackers({"listed": listed}, tmp_path)

    def work():
        with trackers.track("runs/a", {}) as tracked:
            tracked.log("epoch", 1, {"loss": 1.0})
            raise KeyError("of the work")

    with pytest.raises(KeyError):
        work()
    assert listed.calls[-1] == ("close",)
    assert not trackers.failed


def test_run_logged_by_another_process_is_skipped(tmp_path):
    listed = Listed()
    with locks.lock_file(tmp_path / "runs/a/metrics.lock") as held:
        assert held
        log_some(Trackers({"listed": listed}, tmp_path))
    assert not listed.calls


def test_no_tracker_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_some(NO_TRACKERS)
    assert not list(tmp_path.iterdir())


def test_missing_library_is_named_with_its_installation(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"pip install 'bnrecon\[no_such_library\]'"):
        extras.require_trackers(["no_such_library"])
    # wandb leaves a folder of its name in the working directory, which Python would import.
    (tmp_path / "no_such_library").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="not installed"):
        extras.require_trackers(["no_such_library"])
