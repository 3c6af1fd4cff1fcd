"""The number of threads for a product, and how threads wait."""

import os
import sys

import pytest
import torch
from processes import run
from random_layer import gaussian

from bnrecon.construction.two_layer import linear_system
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.hardware import THREAD_OPERATIONS, processor_count, threads_for, use_threads
from bnrecon.solvers import SolverSpec, solving


@pytest.mark.skipif(processor_count() < 2, reason="needs two processors")
def test_small_products_get_one_thread_and_large_ones_all():
    with use_threads(2):
        for operations, threads in ((1, 1), (THREAD_OPERATIONS, 1), (2 * THREAD_OPERATIONS, 2)):
            with threads_for(operations):
                assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 2
        with threads_for(100 * THREAD_OPERATIONS):
            assert torch.get_num_threads() == 2


@pytest.mark.process
@pytest.mark.skipif(processor_count() < 2, reason="needs two processors")
@pytest.mark.parametrize(("at_start", "inside"), [("2", "1 1 2"), ("1", "1 1 1")])
def test_numpy_products_are_bounded_and_never_get_more(at_start, inside):
    code = (
        "import numpy; from threadpoolctl import threadpool_info;"
        "from bnrecon.runtime.hardware import use_threads\n"
        "def threads(): return max(p['num_threads'] for p in threadpool_info()"
        " if p['user_api'] == 'blas')\n"
        "with use_threads(1): print(threads(), end=' ')\n"
        f"with use_threads({3 - int(at_start)}): print(threads(), end=' ')\n"
        "print(threads())"
    )
    threads = {"OMP_NUM_THREADS": at_start, "OPENBLAS_NUM_THREADS": at_start}
    process = run([sys.executable, "-c", code], os.environ | threads, check=True)
    assert process.stdout.strip() == inside


def test_factorization_gets_threads_by_its_cubic_work(monkeypatch):
    noted_operations = []

    def recording(operations):
        noted_operations.append(operations)
        return threads_for(operations)

    monkeypatch.setattr(solving, "threads_for", recording)
    matrix = KhatriRao(gaussian(12, 4), gaussian(12, 3, seed=1))
    system = linear_system(matrix, gaussian(4, 3, seed=2))
    for name in ("matrix_free", "lu"):
        solving.solve(system, SolverSpec(name))
    assert noted_operations == [12**2, 12**3]


@pytest.mark.process
@pytest.mark.parametrize(("chosen", "seen"), [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5")])
def test_waiting_threads_sleep_unless_the_user_chose(chosen, seen):
    code = (
        "import os; from bnrecon.cli import main; "
        "main._run_command = lambda words: print(os.environ['GOMP_SPINCOUNT']) or 0; main.main([])"
    )
    names = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    others = {name: value for name, value in os.environ.items() if name not in names}
    process = run([sys.executable, "-c", code], others | chosen, check=True)
    assert process.stdout.strip() == seen
