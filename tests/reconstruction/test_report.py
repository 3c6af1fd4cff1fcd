"""A reconstruction as a table: one row per layer, the worst first, and the verification."""

import torch
from torch import nn

import bnrecon
from bnrecon.reconstruction.collapse import LayerErrors
from bnrecon.reconstruction.layer_report import _failure
from bnrecon.reconstruction.report import PRINTED


def rebuild(depth, **options):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(depth))).eval()
    return bnrecon.reconstruct(model, **options)


def test_printed_table_starts_with_failed_layers():
    images = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    rebuilt = rebuild(3, images=images)
    errors = [layer.relative_error for layer in rebuilt.layers]
    names = [line.split()[0] for line in str(rebuilt).splitlines()[4:]]
    assert names == [str(i) for i in sorted(range(3), key=lambda i: -errors[i])]
    assert "verified: outputs of 8 images" in str(rebuilt).splitlines()[0]
    object.__setattr__(rebuilt.layers[int(names[-1])], "converged", False)
    assert str(rebuilt).splitlines()[4].split()[0] == names[-1]
    assert "1 NOT CONVERGED" in str(rebuilt).splitlines()[0]


def test_long_networks_print_shortened_with_a_full_frame():
    rebuilt = rebuild(PRINTED + 3, features="id_cond")
    lines = repr(rebuilt).splitlines()
    assert len(lines) == 4 + PRINTED + 1
    assert lines[-1].startswith("3 further layers")
    assert rebuilt._repr_html_().count("<tr>") == PRINTED
    frame = rebuilt.to_frame()
    assert frame["name"].tolist() == [layer.name for layer in rebuilt.layers]
    assert frame["relative_error"].tolist() == [layer.relative_error for layer in rebuilt.layers]


def test_lu_is_not_advised_where_it_solved_the_layer():
    plan = bnrecon.plan_layers(nn.Sequential(nn.Linear(8, 8)).eval())
    errors = LayerErrors(1e-13, 7e-5, 1e-12, 1.3e-4, 1)  # within rounding, but for output 1
    for solver, advised in (("lu", False), ("matrix_free", True)):
        diagnosis = _failure(plan.layers[0], errors, torch.float32, False, solver)
        assert ("solver=lu" in diagnosis) == advised
        assert "a model in double precision, or features=id_cond" in diagnosis
