"""TensorBoard, trackio and wandb, one file each, and what is sent to them."""
