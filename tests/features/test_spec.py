"""Specs of features and solvers: cheap to import, and closed lists of what they allow."""

import subprocess
import sys

import pytest

from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.features.spec import ACTIVATIONS, FeatureSpec
from bnrecon.runtime.errors import UserError


@pytest.mark.process
def test_no_spec_loads_torch():
    code = (
        "import sys, bnrecon.features.spec, bnrecon.solvers.spec; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_activation_is_one_that_a_theorem_covers():
    assert set(ACTIVATIONS) == set(FIRST_ACTIVATIONS)
    inexact = {name for name in ACTIVATIONS if not FIRST_ACTIVATIONS[name].exact}
    for name in ACTIVATIONS:
        if name in inexact:
            with pytest.raises(UserError, match=f"skip=outer: not possible with activation={name}"):
                FeatureSpec(skip="outer", activation=name)
        else:
            assert FeatureSpec(skip="outer", activation=name).activation == name
