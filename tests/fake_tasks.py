"""Task functions that other processes can import."""

import os
import signal
import time
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from bnrecon.reproduction.parts import Task
from bnrecon.reproduction.work import TaskWork
from bnrecon.runtime.errors import Interrupted, RunError, UserError
from bnrecon.runtime.interruption import StopRequest


def describe(folder, name):
    """Leave a trace of each call; the row tells where it was computed."""
    import torch

    with (Path(folder) / f"{name}.called").open("a") as file:
        file.write(f"{os.getpid()}\n")
    row = {
        "process": os.getpid(),
        "threads": torch.get_num_threads(),
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "session": os.getsid(0),
    }
    return pd.DataFrame([row])


def fail(folder, name, kind):
    describe(folder, name)
    raise {"mistake": UserError, "failure": RunError, "defect": KeyError}[kind](
        f"{kind}\nof {name}"
    )


def die(folder, name):
    """End like a process that the kernel kills for memory."""
    describe(folder, name)
    os.kill(os.getpid(), signal.SIGKILL)


def train(folder, name):
    """Wait for a stop request, then leave a checkpoint, like a training."""
    with StopRequest() as stop:
        tqdm.get_lock()  # as a progress bar does
        describe(folder, name)
        end = time.monotonic() + 900
        while stop.reason is None and time.monotonic() < end:
            time.sleep(0.01)
        (Path(folder) / f"{name}.checkpoint").write_text(stop.reason or "too late")
        raise Interrupted("stopped")


def task_work(folder, name, function=describe, **arguments):
    task = Task(name, function, {"folder": str(folder), "name": name, **arguments})
    return TaskWork("part", "smoke", task, Path(folder) / "studies", Path(folder) / "shipped")


def calls(folder, name):
    """How often the task was computed."""
    path = Path(folder) / f"{name}.called"
    return len(path.read_text().splitlines()) if path.exists() else 0
