"""Stands in for NVIDIA's apex, which needs a GPU to build: the names that the tests use."""
