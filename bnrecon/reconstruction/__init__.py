"""The library call: plan, solve, assemble; a source network from any target.

``reconstruct`` runs all three steps. They can also be called one by one, for instance to store
solutions between them:

>>> import torch
>>> from bnrecon.features import FeatureSpec
>>> from bnrecon.reconstruction import assemble, plan_layers, solve_layer
>>> _ = torch.manual_seed(0)
>>> layers = [torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)]
>>> model = torch.nn.Sequential(*layers).eval()
>>> plan = plan_layers(model, FeatureSpec("he_normal", oversampling=2.0), seed=0)
>>> solutions = {layer.name: solve_layer(layer) for layer in plan.layers}
>>> rebuilt = assemble(plan, solutions)
>>> [(layer.name, layer.width, layer.converged) for layer in rebuilt.layers]
[('0', 30, True), ('2', 20, True)]
"""

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.reconstruction.assembly import assemble as assemble
    from bnrecon.reconstruction.library_call import reconstruct as reconstruct
    from bnrecon.reconstruction.moments import gather as gather
    from bnrecon.reconstruction.plan import Plan as Plan
    from bnrecon.reconstruction.planned_layer import PlannedLayer as PlannedLayer
    from bnrecon.reconstruction.planning import plan_layers as plan_layers
    from bnrecon.reconstruction.refusal import RefusedLayers as RefusedLayers
    from bnrecon.reconstruction.report import LayerReport as LayerReport
    from bnrecon.reconstruction.report import OutputDifference as OutputDifference
    from bnrecon.reconstruction.report import Reconstruction as Reconstruction
    from bnrecon.reconstruction.solving import solve_layer as solve_layer
    from bnrecon.reconstruction.solving import solve_layers as solve_layers

__getattr__, __dir__, __all__ = import_on_use(__name__)
