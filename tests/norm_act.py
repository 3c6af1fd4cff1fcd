"""A normalization that computes more than its base class."""

import torch.nn.functional as F
from torch import nn


class NormAct(nn.BatchNorm2d):
    """BatchNorm, dropout and ReLU in one module, like timm's BatchNormAct2d."""

    def __init__(self, channels, dropout=0.0):
        super().__init__(channels)
        self.drop, self.act = nn.Dropout(dropout), nn.ReLU()

    def forward(self, x):
        running = (None, None) if self.training else (self.running_mean, self.running_var)
        x = F.batch_norm(x, *running, self.weight, self.bias, self.training, 0.1, self.eps)
        return self.act(self.drop(x))
