"""Images of CIFAR-10's size."""

import pytest
from image_sets import write_cifar


@pytest.fixture(scope="session")
def cifar(tmp_path_factory):
    """The folder of a cifar10.npz that holds noise."""
    folder = tmp_path_factory.mktemp("cifar")
    write_cifar(folder, 600, 140)
    return folder
