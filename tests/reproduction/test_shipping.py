"""Shipped results name neither a machine nor its folders."""

import dataclasses
from pathlib import Path

import pytest
import ship_study
from repository import RESULTS

from bnrecon.reporting.result import RunResult


def test_shipped_result_omits_its_machine():
    path = RESULTS[0]
    published = dataclasses.replace(RunResult.read(path), finished=None, command=None)
    config = dict(published.config) | {"outputs": "/scratch/me", "targets": "/scratch/targets"}
    config["data"] = dict(config["data"]) | {"root": "/home/me/data"}
    config |= {"tracker_folder": "/home/me/trackers"}
    published = dataclasses.replace(
        published, config=dict(published.config) | {"tracker_folder": None}
    )
    store = f"/scratch/targets/{Path(published.target.folder).name}"
    made = dataclasses.replace(
        published,
        config=config,
        target=dataclasses.replace(published.target, folder=store),
        host="node7",
        finished="2026-01-31T09:05:00Z",
        command="bnrecon study x scale=laptop outputs=/scratch/me",
    )
    brought = ship_study.without_machine(made)
    assert brought.finished == made.finished
    assert brought.command == "bnrecon study x scale=laptop outputs=FOLDER"
    assert dataclasses.replace(brought, finished=None, command=None) == published


def test_weights_file_is_shipped_by_name_only():
    published = RunResult.read(RESULTS[0])
    target = dict(published.config["target"]) | {"weights": "/home/me/mine.safetensors"}
    made = dataclasses.replace(published, config=dict(published.config) | {"target": target})
    assert ship_study.without_machine(made).config["target"]["weights"] == "mine.safetensors"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("bnrecon run outputs=again/me 'a=[1, 2]'", "bnrecon run outputs=FOLDER 'a=[1, 2]'"),
        ("bnrecon run data.root='~/data'", "bnrecon run data.root=FOLDER"),
        ("bnrecon run --config-dir /home/me", "bnrecon run --config-dir FOLDER"),
        ("bnrecon run --config-dir=/home/me", "bnrecon run --config-dir=FOLDER"),
        (r"bnrecon run 'features.path=C:\me'", "bnrecon run features.path=FOLDER"),
        ("""bnrecon run 'hydra.sweep.dir="/a b"'""", "bnrecon run hydra.sweep.dir=FOLDER"),
    ],
)
def test_folders_in_a_command_are_hidden(command, shown):
    assert ship_study.without_folders(command) == shown
