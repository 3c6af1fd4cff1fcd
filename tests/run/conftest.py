"""Finished runs, copied for each test."""

import shutil

import pytest


def _copy(outputs, to):
    """Copy a finished run and its target; return the run's folder."""
    shutil.copytree(outputs, to, dirs_exist_ok=True)
    (folder,) = (to / "runs").iterdir()
    return folder


@pytest.fixture
def finished(smallest_outputs, tmp_path):
    """The folder of a finished run of ``SMALLEST`` below ``tmp_path``."""
    return _copy(smallest_outputs, tmp_path)


@pytest.fixture
def two_seeds(two_seed_outputs, tmp_path):
    """The folder of a finished run of ``TWO_SEEDS`` below ``tmp_path``."""
    return _copy(two_seed_outputs, tmp_path)


@pytest.fixture(scope="session")
def stored_targets(two_seed_outputs, tmp_path_factory):
    """An option to take the target of ``TWO_SEEDS`` from a store and train others into it."""
    store = tmp_path_factory.mktemp("targets")
    shutil.copytree(two_seed_outputs / "targets", store, dirs_exist_ok=True)
    return f"targets={store}"
