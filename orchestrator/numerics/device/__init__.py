"""Exact sums where gradients lie on a device: the loops of `numerics.exact` as kernels, and as operations of torch."""
