"""Drawing, which works on raw bits in NumPy: torch.compile cannot follow it, and calls it as it is.

Imported by what draws in its forward, since ``torch.compiler.disable`` loads the compiler, a second
of every command.
"""

from __future__ import annotations

import torch

from bnrecon.features.pair import Features

draw = torch.compiler.disable(
    Features.part,
    reason="features are drawn in each forward: compile without fullgraph=True, rebuild with "
    "storage=memory, or take bnrecon.collapse(network)",
)
