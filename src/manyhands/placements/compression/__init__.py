"""Reduction of gradients by codecs and reducers, in place of DDP's own allreduce."""
