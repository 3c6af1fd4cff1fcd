"""The files that wandb keeps for its upload hold the numbers of the run; nothing is uploaded."""

import json
import struct

import pytest
from processes import TWO_SEEDS, folder_of, succeeded

from bnrecon.reporting.result import RunResult

pytestmark = pytest.mark.process
pytest.importorskip("wandb")


def records(path):
    """The records of a .wandb file: a header of 7 bytes, then blocks as in LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, offset, part = path.read_bytes(), 7, b""
    while offset + 7 <= len(content):
        if (in_block := 32768 - offset % 32768) < 7:
            offset += in_block
            continue
        _, size, kind = struct.unpack("<IHB", content[offset : offset + 7])
        part += content[offset + 7 : offset + 7 + size]
        offset += 7 + size
        if kind in (1, 4):  # a whole record or its last part
            yield Record.FromString(part)
            part = b""


def history(outputs, name):
    """The rows of a run in all its files, by wandb's step; a row sent again is the same."""
    rows_by_step = {}
    for path in sorted((outputs / "trackers" / "wandb").glob(f"offline-run-*-{name}/*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                row = {i.key or "/".join(i.nested_key): i for i in record.history.item}
                rows_by_step.setdefault(int(row["_step"].value_json), []).append(
                    {key: json.loads(item.value_json) for key, item in row.items()}
                )
    return rows_by_step


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("outputs")
    out, err = succeeded(*TWO_SEEDS, "tracker=wandb", f"outputs={outputs}")
    assert "wandb failed" not in err
    assert f"wandb sync {outputs}" in err
    return folder_of(out), outputs


def test_files_have_layers_and_seeds_with_their_axes(tracked):
    folder, outputs = tracked
    result = RunResult.read(folder / "result.json")
    rows = [row for (row,) in history(outputs, folder.name).values()]
    seeds = [(row["seed"], row["seed/accuracy"]) for row in rows if "seed/accuracy" in row]
    assert seeds == [(seed.seed, pytest.approx(seed.accuracy)) for seed in result.seeds]
    tag = "layer/relative_error/seed-0"
    errors = [(row["layer"], row[tag]) for row in rows if tag in row]
    assert errors == [
        (number, pytest.approx(layer.relative_error))
        for number, layer in enumerate(result.seeds[0].layers, start=1)
    ]


def test_export_replaces_the_run_with_the_same_steps(tracked):
    folder, outputs = tracked
    before = history(outputs, folder.name)
    assert "rows sent" in succeeded("wandb", str(outputs), command="export")[0]
    after = history(outputs, folder.name)
    assert sorted(after) == sorted(before)
    assert all(len(rows) == 1 for rows in after.values())
