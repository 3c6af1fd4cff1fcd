"""What is logged reaches every tracker once, and no tracker's failure reaches the work."""

import logging

import pytest

from bnrecon.runtime import locks, tracker_libraries
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.tracking import NO_TRACKERS, Trackers


class Listed:
    """A tracker that lists what it is given; ``broken`` names the call that fails."""

    pause = lag = 0.0

    def __init__(self, folder, name="listed", broken=None):
        self.folder, self.name, self.broken, self.calls = folder / name, name, broken, []
        self.view = f"ls {self.folder}"

    def record(self, run):
        self._call("record", run)
        return self.folder / f"{run}.txt"

    def start(self, run, config, before):
        self._call("start", run, dict(config), before)

    def log(self, kind, step, values):
        self._call("log", kind, step, dict(values))

    def result(self, values):
        self._call("result", dict(values))

    def flush(self):
        self._call("flush")

    def finish(self):
        self._call("finish")

    def _call(self, name, *what):
        if name == self.broken:
            raise OSError(28, "No space left on device")
        self.calls.append((name, *what))

    def entries(self):
        return [call for call in self.calls if call[0] in ("log", "result")]


def log_some(trackers, epochs=2):
    with trackers.track("runs/a", {"train": {"lr": 0.1}}) as tracked:
        for number in range(1, epochs + 1):
            tracked.epoch(number, {"loss": 1 / number})
        tracked.layer(7, 1, {"residual": 1e-12})
        tracked.layer_error(7, 1, {"relative_error": 2e-12})
        tracked.seed(7, {"accuracy": 99.0})
        tracked.result({"accuracy": 99.0})


def test_everything_is_sent_with_its_name_and_axis(tmp_path):
    tracker = Listed(tmp_path)
    log_some(Trackers([tracker]))
    assert ("start", "runs/a", {"train.lr": 0.1}, 0) in tracker.calls
    assert tracker.calls[-1] == ("finish",)
    assert tracker.entries() == [
        ("log", "epoch", 1, {"epoch/loss": 1.0}),
        ("log", "epoch", 2, {"epoch/loss": 0.5}),
        ("log", "layer", 1, {"layer/residual/seed-7": 1e-12}),
        ("log", "layer", 1, {"layer/relative_error/seed-7": 2e-12}),
        ("log", "seed", 7, {"seed/accuracy": 99.0}),
        ("result", {"result/accuracy": 99.0}),
    ]


def test_a_run_that_goes_on_sends_what_is_new_and_says_how_much_was_there(tmp_path):
    log_some(Trackers([Listed(tmp_path)]))
    trackers = Trackers([Listed(tmp_path)])
    log_some(trackers, epochs=3)
    (tracker,) = trackers.trackers
    assert tracker.entries() == [("log", "epoch", 3, {"epoch/loss": 1 / 3})]
    assert ("start", "runs/a", {"train.lr": 0.1}, 6) in tracker.calls
    assert (trackers.added, trackers.known) == (1, 6)


def test_a_tracker_that_has_everything_is_not_started(tmp_path):
    log_some(Trackers([Listed(tmp_path)]))
    again = Listed(tmp_path)
    log_some(Trackers([again]))
    assert [call[0] for call in again.calls] == ["record"]


def test_an_entry_whose_note_was_torn_by_a_kill_is_sent_again(tmp_path):
    log_some(Trackers([Listed(tmp_path)]))
    record = tmp_path / "listed" / "runs" / "a.txt"
    record.write_text(record.read_text().removesuffix("result\n") + "res")
    again = Listed(tmp_path)
    log_some(Trackers([again]))
    assert again.entries() == [("result", {"result/accuracy": 99.0})]
    assert record.read_text().endswith("seed 7\nresult\n")


@pytest.mark.parametrize(
    ("call", "missing"),
    [("record", 6), ("start", 6), ("log", 6), ("result", 1), ("flush", 6), ("finish", 0)],
)
def test_a_tracker_that_fails_is_warned_of_once_and_the_others_go_on(
    call, missing, tmp_path, caplog
):
    broken, good = Listed(tmp_path, "broken", broken=call), Listed(tmp_path, "good")
    trackers = Trackers([broken, good])
    for _ in range(2):
        log_some(trackers)
    assert len(good.entries()) == 6
    warnings = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "broken failed" in warnings[0]
    assert "No space left on device" in warnings[0]
    assert "bnrecon export broken" in warnings[0]
    repaired = Listed(tmp_path, "broken")
    log_some(Trackers([repaired]))
    assert len(repaired.entries()) == missing  # what failed is not noted as sent


def test_an_error_of_the_work_itself_is_not_a_trackers(tmp_path):
    tracker = Listed(tmp_path)
    trackers = Trackers([tracker])

    def work():
        with trackers.track("runs/a", {}) as tracked:
            tracked.epoch(1, {"loss": 1.0})
            raise KeyError("of the work")

    with pytest.raises(KeyError):
        work()
    assert tracker.calls[-1] == ("finish",)
    assert not trackers.failed


def test_a_file_where_the_trackers_folder_should_be_is_warned_of(tmp_path, caplog):
    (tmp_path / "listed").write_text("not a folder")
    log_some(Trackers([Listed(tmp_path)]))
    assert "listed failed" in caplog.text


def test_a_run_that_another_process_logs_is_left_to_it(tmp_path):
    tracker = Listed(tmp_path)
    with locks.lock_file(tmp_path / "listed" / "runs" / "a.lock") as held:
        assert held
        log_some(Trackers([tracker]))
    assert not tracker.entries()


def test_a_costly_tracker_is_not_flushed_after_each_entry(tmp_path):
    tracker = Listed(tmp_path)
    tracker.pause = 3600.0
    log_some(Trackers([tracker]), epochs=50)
    assert tracker.calls.count(("flush",)) == 2  # after the first entry, and at the end
    assert len((tmp_path / "listed/runs/a.txt").read_text().splitlines()) == 54


def test_what_may_not_be_written_yet_is_not_noted_before_the_end(tmp_path):
    tracker = Listed(tmp_path)
    tracker.lag = 3600.0
    record = tmp_path / "listed/runs/a.txt"
    with Trackers([tracker]).track("runs/a", {}) as tracked:
        tracked.epoch(1, {"loss": 1.0})
        assert not record.exists()
    assert record.read_text() == "epoch 1\n"


def test_no_tracker_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_some(NO_TRACKERS)
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_said_with_what_installs_it(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"pip install 'bnrecon\[no_such_library\]'"):
        tracker_libraries.require_libraries(["no_such_library"])
    # wandb leaves a folder of its own name where it runs, which Python would import.
    (tmp_path / "no_such_library").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="not installed"):
        tracker_libraries.require_libraries(["no_such_library"])
