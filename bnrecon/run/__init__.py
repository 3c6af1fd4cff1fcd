"""The main job: target, features, solver, source, evaluation, result."""
