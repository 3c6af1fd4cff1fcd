"""A study of quick tasks, ``made``, that is also registered in cluster jobs."""

import json
import os
import sys
import time
from pathlib import Path

import pandas as pd
from fake_tasks import describe, die, fail

import bnrecon.studies
from bnrecon.reproduction.experiment import Experiment
from bnrecon.reproduction.parts import Task
from bnrecon.reproduction.study import Study
from bnrecon.runtime.errors import Interrupted
from bnrecon.runtime.interruption import StopRequest
from bnrecon.studies import registry

TRACES = "BNRECON_TEST_TRACES"  # the folder where tasks leave traces
STEPS = "BNRECON_TEST_STEPS"  # steps of a long task, a tenth of a second each


def count(folder, name, steps):
    """Count with a checkpoint, like a training; interruptions do not change the row."""
    path = Path(folder) / f"{name}.checkpoint"
    done, total = json.loads(path.read_text()) if path.exists() else (0, 0)
    with StopRequest() as stop:
        describe(folder, name)
        while done < steps:
            done += 1
            total += done**2
            time.sleep(0.1)
            if stop.reason is not None:
                path.write_text(json.dumps([done, total]))
                raise Interrupted(stop.reason)
    return pd.DataFrame([{"total": total, "steps": done}])


def hoard(folder, name):
    """Take 3 GB of memory."""
    describe(folder, name)
    held = [bytearray(os.urandom(1024**2) * 100) for _ in range(30)]
    return pd.DataFrame([{"held": len(held)}])


TASKS = {
    "good": [("a", describe, {}), ("b", describe, {}), ("c", describe, {})],
    "bad": [
        ("failure", fail, {"kind": "failure"}),
        ("mistake", fail, {"kind": "mistake"}),
        ("between", describe, {}),
    ],
    "dying": [("before", describe, {}), ("killed", die, {}), ("after", describe, {})],
    "long": [("counted", count, {})],
    "hungry": [("small", describe, {}), ("hoarder", hoard, {}), ("last", describe, {})],
}


def part(name):
    def tasks(scale, options):
        folder = os.environ[TRACES]
        return [
            Task(
                task,
                function,
                {"folder": folder, "name": task, **arguments}
                | ({"steps": int(os.environ[STEPS])} if function is count else {}),
            )
            for task, function, arguments in TASKS[name]
        ]

    return Experiment("Theorem 0", name, tasks, lambda rows: rows, "A caption.")


STUDY = Study("made", "A made-up paper", tuple(TASKS))


SITE = """\
import bnrecon.studies
from bnrecon.studies import registry

bnrecon.studies.__path__.append({site!r})
registry.STUDIES = (*registry.STUDIES, "made")
"""


def environment(folder, steps=30):
    """Variables that register the study in processes, by a ``sitecustomize`` module."""
    site = Path(folder) / "site"
    files = {
        "sitecustomize.py": SITE.format(site=str(site)),
        "made/__init__.py": "",
        "made/paper.md": f"---\npaper: {STUDY.paper}\nparts: {list(STUDY.parts)}\n---",
    }
    files |= {
        f"made/{name}.py": f"from cluster_study import part\nPART = part({name!r})"
        for name in TASKS
    }
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    path = (str(site), str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        TRACES: str(folder),
        STEPS: str(steps),
        "OMP_NUM_THREADS": "1",
    }


def register(folder, monkeypatch, steps=30):
    """Register the study in this process and its children for a test."""
    for name, value in environment(folder, steps).items():
        monkeypatch.setenv(name, value)
    paths = [*bnrecon.studies.__path__, str(Path(folder) / "site")]
    monkeypatch.setattr(bnrecon.studies, "__path__", paths)
    monkeypatch.setattr(registry, "STUDIES", (*registry.STUDIES, STUDY.name))
    for name in [name for name in sys.modules if name.startswith("bnrecon.studies.made")]:
        monkeypatch.delitem(sys.modules, name)


def rows_of(asked, name):
    """The rows of a computed task."""
    path = next(asked.folder.glob(f"tasks/*/{name}-*.json"))
    return json.loads(path.read_text())["rows"]


def jobs_folders(asked):
    """The folders of a request's submissions, in order."""
    return sorted((asked.folder / "jobs").iterdir())
