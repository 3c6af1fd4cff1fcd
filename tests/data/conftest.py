"""Downloads without a network."""

import contextlib

import pytest
from local_server import serving


@pytest.fixture
def serve(monkeypatch):
    """Start servers that give one answer each; returns their addresses."""
    monkeypatch.setenv("no_proxy", "*")
    with contextlib.ExitStack() as servers:
        yield lambda answer: servers.enter_context(serving(answer))
