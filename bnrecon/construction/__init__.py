"""From a target layer and its features to a linear system, and from its solution to scales and shifts."""
