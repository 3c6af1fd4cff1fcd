"""A reconstruction as a table: a row a layer, the worst first, and whether outputs agree."""

import torch
from torch import nn

import bnrecon
from bnrecon.reconstruction.report import PRINTED


def rebuild(depth, **options):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(depth))).eval()
    return bnrecon.reconstruct(model, **options)


def test_the_printed_table_begins_with_the_layers_that_failed():
    images = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    rebuilt = rebuild(3, images=images)
    errors = [layer.relative_error for layer in rebuilt.layers]
    names = [line.split()[0] for line in str(rebuilt).splitlines()[4:]]
    assert names == [str(i) for i in sorted(range(3), key=lambda i: -errors[i])]
    assert "verified: outputs of 8 images" in str(rebuilt).splitlines()[0]
    object.__setattr__(rebuilt.layers[int(names[-1])], "converged", False)
    assert str(rebuilt).splitlines()[4].split()[0] == names[-1]
    assert "1 NOT CONVERGED" in str(rebuilt).splitlines()[0]


def test_a_long_network_prints_as_a_screen_and_its_frame_has_every_layer():
    rebuilt = rebuild(PRINTED + 3, features="id_cond")
    lines = repr(rebuilt).splitlines()
    assert len(lines) == 4 + PRINTED + 1
    assert lines[-1].startswith("3 further layers")
    assert rebuilt._repr_html_().count("<tr>") == PRINTED
    frame = rebuilt.to_frame()
    assert frame["name"].tolist() == [layer.name for layer in rebuilt.layers]
    assert frame["relative_error"].tolist() == [layer.relative_error for layer in rebuilt.layers]
