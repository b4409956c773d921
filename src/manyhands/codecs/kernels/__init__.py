"""Numeric kernels of the codecs. They import torch and numpy; codecs load them when they encode."""
