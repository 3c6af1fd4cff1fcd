"""One finished run for many tests, each with a copy of its own."""

import shutil

import pytest


def _copy(outputs, to):
    """A copy of a finished run and its target; the run's folder."""
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
    """An option that takes the target of ``TWO_SEEDS`` from a store, and trains others into it."""
    store = tmp_path_factory.mktemp("targets")
    shutil.copytree(two_seed_outputs / "targets", store, dirs_exist_ok=True)
    return f"targets={store}"
