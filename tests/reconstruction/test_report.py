"""A reconstruction as a table: one row per layer, the worst first, and the verification."""

import torch
from torch import nn

import bnrecon
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
