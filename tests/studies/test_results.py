"""Results as data frames: the numbers of the CSV files, the paper's beside, and where from."""

import pandas as pd
import pytest

import bnrecon
from bnrecon.runtime.errors import UserError

ADDED = {"version", "commit", "command"}


@pytest.mark.parametrize(
    ("study", "part"),
    [("burkholz2024", "table2"), ("burkholz2024", "scratch"), ("bn_explained", "table1")],
)
def test_the_frame_has_the_numbers_that_ship_and_says_where_each_row_comes_from(
    shipped_outputs, study, part
):
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


def test_the_papers_numbers_stand_beside_the_rows_they_are_of(shipped_outputs):
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


def test_without_a_part_all_parts_come_and_what_was_not_run_has_no_row(shipped_outputs):
    frames = bnrecon.results("random_features", scale="paper", outputs=shipped_outputs)
    assert len(frames) == 15
    assert all(frame.empty for frame in frames.values())


@pytest.mark.parametrize("part", ["minimum", "tabel1", ["table1"]])
def test_what_is_no_part_is_refused(part):
    with pytest.raises(UserError, match=r"part=.*Allowed: accuracy, .* table1, table2"):
        bnrecon.results("burkholz2024", part)


@pytest.mark.parametrize("study", ["burkholz2024", "random_features", "bn_explained"])
def test_every_reported_number_says_where_in_the_paper_it_stands(study):
    printed = bnrecon.reported(study)
    assert printed["where"].str.len().min() > 0
    assert printed["value"].notna().sum() >= len(printed) - 1
