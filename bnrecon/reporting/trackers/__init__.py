"""Adapters to TensorBoard, trackio, wandb and MLflow, and what is sent to them."""
