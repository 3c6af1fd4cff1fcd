"""From a target layer and its features to a linear system and its scales, theorem by theorem.

For networks of linear layers and ReLUs there are ``relu_network`` (wide sources, Giannou et al.
2023, Theorem 1) and ``skip_chain`` (deep ones, Theorem 2).
"""

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.construction.relu_source import relu_network as relu_network
    from bnrecon.construction.skip_source import skip_chain as skip_chain

__getattr__, __dir__, __all__ = import_on_use(__name__)
