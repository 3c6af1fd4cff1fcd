"""Several processes: errors are reported once; a single process needs no communication."""

import pytest
import torch

from bnrecon.runtime import distributed
from bnrecon.runtime.errors import Interrupted, ReportedElsewhere, RunError, UserError


@pytest.mark.parametrize("kind", [UserError, RunError, Interrupted])
def test_error_in_all_processes_is_reported_by_the_first(kind, monkeypatch):
    error = kind("the loss is not finite")
    assert distributed.report_once(error) is error
    monkeypatch.setattr(distributed, "rank_and_world_size", lambda: (1, 2))
    other = distributed.report_once(error)
    assert isinstance(other, ReportedElsewhere)
    assert str(other) == str(error)
    assert vars(error) == {}


def test_single_process_calls_and_sums_directly():
    calls = []
    assert distributed.rank_and_world_size() == (0, 1)
    assert distributed.run_on_first_rank(lambda: calls.append(1) or 5) == 5
    assert distributed.run_on_first_rank_before_others(lambda: calls.append(2) or 6) == 6
    assert calls == [1, 2]
    assert distributed.sum_over_ranks(torch.tensor(3.0)) == 3
    assert distributed.any_rank(True, torch.device("cpu"))
    with distributed.join_processes(torch.device("cpu")):
        distributed.refuse_torchrun("bnrecon run")


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=r"4 processes on a machine of 2 GPUs; .*per-node=2"):
        distributed.join_processes(torch.device("cuda")).__enter__()
    with pytest.raises(UserError, match="torchrun is for bnrecon train; bnrecon study takes"):
        distributed.refuse_torchrun("bnrecon study")
