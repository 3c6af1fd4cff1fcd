"""The main job: target, features, solver, source network, evaluation, result."""
