"""The mark of attentions whose projections are modules of their own."""

from torch import nn

__all__ = ["Unpacked"]


class Unpacked(nn.Module):
    """An attention whose projections are modules that it calls; a trace does not look inside."""
