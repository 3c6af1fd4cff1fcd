"""Draw features outside of torch.compile, which cannot follow raw bits in NumPy.

Import it only where a forward draws: ``torch.compiler.disable`` loads the compiler, which would
cost every command a second.
"""

import torch

from bnrecon.features.pair import Features

draw = torch.compiler.disable(
    Features.part,
    reason="features are drawn in each forward: compile without fullgraph=True, rebuild with "
    "storage=memory, or take bnrecon.collapse(network)",
)
