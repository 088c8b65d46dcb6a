"""The session's tritonserver."""

from tests.serving.conftest import items, server

__all__ = ["items", "server"]  # fixtures
