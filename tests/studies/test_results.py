"""Results as data frames: the CSV files' numbers, reported numbers and provenance."""

import pandas as pd
import pytest

import bnrecon
from bnrecon.runtime.errors import UserError

ADDED = {"version", "commit", "command"}


@pytest.mark.parametrize(
    ("study", "part"),
    [("burkholz2024", "table2"), ("burkholz2024", "scratch"), ("bn_explained", "table1")],
)
def test_frame_has_the_shipped_numbers_and_their_provenance(shipped_outputs, study, part):
    frame = bnrecon.results(study, part, outputs=shipped_outputs)
    path = shipped_outputs / study / f"{part}-laptop.csv"
    shipped = pd.read_csv(path, keep_default_na=False, na_values=[""])
    beside = {name for name in frame if name.startswith("reported")} - set(shipped)
    assert set(frame) - beside == set(shipped) | ADDED
    pd.testing.assert_frame_equal(frame[list(shipped)], shipped)
    finished = frame[frame["task" if "task" in frame else "run"].notna()]
    assert len(finished) > 20
    assert finished["commit"].str.fullmatch(r"[0-9a-f]{12}\+?").all()
    assert frame["command"].str.startswith("bnrecon ").all()


def test_reported_numbers_stand_in_their_rows(shipped_outputs):
    printed = bnrecon.reported("burkholz2024").set_index(["entry", "name"])["value"]
    rows = bnrecon.results("burkholz2024", "table1", outputs=shipped_outputs)
    activations = rows["target"].str.partition(",")[0].str.replace(" ", "_")
    names = "rebuilt " + activations + " " + rows["features"]
    assert rows["reported_rebuilt_mean"].tolist() == [printed["table1", name] for name in names]
    rows = bnrecon.results("bn_explained", "table1", outputs=shipped_outputs)
    resnet = rows[(rows["network"] == "RESNET") & (rows["data"] == "cifar100")]
    assert resnet.groupby("affine")["reported_accuracy"].first().to_dict() == {
        False: 50.0,
        True: 54.8,
    }


def test_all_parts_come_without_a_part_and_unfinished_ones_are_empty(shipped_outputs):
    frames = bnrecon.results("random_features", scale="paper", outputs=shipped_outputs)
    assert len(frames) == 15
    assert all(frame.empty for frame in frames.values())


@pytest.mark.parametrize("part", ["minimum", "tabel1", ["table1"]])
def test_unknown_part_is_refused(part):
    with pytest.raises(UserError, match=r"part=.*Allowed: accuracy, .* table1, table2"):
        bnrecon.results("burkholz2024", part)


@pytest.mark.parametrize("study", ["burkholz2024", "random_features", "bn_explained"])
def test_every_reported_number_names_its_location(study):
    printed = bnrecon.reported(study)
    assert printed["where"].str.len().min() > 0
    assert printed["value"].notna().sum() >= len(printed) - 1
