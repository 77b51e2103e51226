"""The four passes over the activation as Triton kernels, for CUDA devices; `TRITON_INTERPRET=1` runs them on a CPU.

One program handles one sample and a block of channels, walking over space in blocks; strides make the same kernels
serve contiguous and channels-last activations. Sums are taken in float32, or float64 for float64 activations.

Traffic per activation element, in elements (`python -m scripts.bench norms` prints it in bytes beside BN's):

    moments          1 read            the sample moments of a block are merged by Chan's update, so one read is enough
    scale_and_shift  1 read, 1 write
    gradient_sums    2 reads
    input_gradient   2 reads, 1 write

which is BN's own: two reads and a write forward, four reads and a write backward.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from backbone.norms.fused import TensorPasses, is_channels_last
from backbone.norms.weighted import compute_dtype

BLOCK = 1024  # elements of a tile
CHANNELS_LAST_CHANNELS = 16  # of a tile: 64 contiguous bytes of float32, and still many programs


@triton.jit
def _tile(n, stride_n, c, stride_c, s, stride_s, C, S):
    """Offsets and mask of the tile of channels `c` and positions `s` of sample `n`."""
    offsets = n * stride_n + c[:, None] * stride_c + s[None, :] * stride_s
    return offsets, (c < C)[:, None] & (s < S)[None, :]


@triton.jit
def _moments(
    a, guess, mean, squares, C, S, stride_n, stride_c, stride_s, ACC: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr
):
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    origin = tl.load(guess + c, c < C, other=0.0)[:, None]
    mean_so_far = tl.zeros((BC,), ACC)
    squares_so_far = tl.zeros((BC,), ACC)
    for start in range(0, S, BS):
        offsets, inside = _tile(n, stride_n, c, stride_c, start + tl.arange(0, BS), stride_s, C, S)
        x = tl.load(a + offsets, inside, other=0.0).to(ACC) - origin
        x = tl.where(inside, x, 0.0)
        size = tl.minimum(S - start, BS).to(ACC)
        block_mean = tl.sum(x, 1) / size
        centered = tl.where(inside, x - block_mean[:, None], 0.0)
        step = block_mean - mean_so_far
        share = size / (start + size)
        mean_so_far += step * share
        squares_so_far += tl.sum(centered * centered, 1) + step * step * start * share
    tl.store(mean + n * C + c, mean_so_far, c < C)
    tl.store(squares + n * C + c, squares_so_far, c < C)


@triton.jit
def _scale_and_shift(a, scale, shift, out, C, S, stride_n, stride_c, stride_s,
                     ACC: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    offsets, inside = _tile(n, stride_n, c, stride_c, tl.program_id(2) * BS + tl.arange(0, BS), stride_s, C, S)
    s = tl.load(scale + c, c < C, other=0.0)[:, None]
    k = tl.load(shift + c, c < C, other=0.0)[:, None]
    x = tl.load(a + offsets, inside, other=0.0).to(ACC)
    tl.store(out + offsets, x * s + k, inside)


@triton.jit
def _gradient_sums(g, a, mu, sum_g, sum_gd, C, S, stride_n, stride_c, stride_s,
                   ACC: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    m = tl.load(mu + c, c < C, other=0.0)[:, None]
    total = tl.zeros((BC,), ACC)
    products = tl.zeros((BC,), ACC)
    for start in range(0, S, BS):
        offsets, inside = _tile(n, stride_n, c, stride_c, start + tl.arange(0, BS), stride_s, C, S)
        x = tl.load(a + offsets, inside, other=0.0).to(ACC)
        y = tl.load(g + offsets, inside, other=0.0).to(ACC)
        total += tl.sum(y, 1)
        products += tl.sum(y * (x - m), 1)
    tl.store(sum_g + n * C + c, total, c < C)
    tl.store(sum_gd + n * C + c, products, c < C)


@triton.jit
def _input_gradient(g, a, scale, slope, offset, out, C, S, stride_n, stride_c, stride_s,
                    ACC: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    offsets, inside = _tile(n, stride_n, c, stride_c, tl.program_id(2) * BS + tl.arange(0, BS), stride_s, C, S)
    s = tl.load(scale + c, c < C, other=0.0)[:, None]
    p = tl.load(slope + n * C + c, c < C, other=0.0)[:, None]
    q = tl.load(offset + n * C + c, c < C, other=0.0)[:, None]
    x = tl.load(a + offsets, inside, other=0.0).to(ACC)
    y = tl.load(g + offsets, inside, other=0.0).to(ACC)
    tl.store(out + offsets, y * s + x * p + q, inside)


class _Layout:
    """Sizes, strides, tile and grids of an activation."""

    def __init__(self, a: torch.Tensor):
        n, c = a.shape[:2]
        s = a[0, 0].numel()
        strides = (c * s, 1, c) if is_channels_last(a) else (c * s, s, 1)
        if is_channels_last(a):
            block_c = min(CHANNELS_LAST_CHANNELS, triton.next_power_of_2(c))
            block_s = min(BLOCK // block_c, triton.next_power_of_2(s))
        else:
            block_s = min(BLOCK, triton.next_power_of_2(s))
            block_c = min(BLOCK // block_s, triton.next_power_of_2(c))
        acc = tl.float64 if a.dtype == torch.float64 else tl.float32
        self.arguments = (c, s, *strides, acc, block_c, block_s)
        self.rows = (n, triton.cdiv(c, block_c))  # one program walks over all of space
        self.tiles = (*self.rows, triton.cdiv(s, block_s))
        self.moments_shape, self.dtype = (n, c), compute_dtype(a)

    def two_moments(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.empty(self.moments_shape, dtype=self.dtype, device=like.device) for _ in range(2))


class TritonPasses(TensorPasses):
    """Those over the activation; what is between them stays tensor operations."""

    @staticmethod
    def moments(a, *, exact):
        layout = _Layout(a)  # these moments are always exact
        distance, squares = layout.two_moments(a)
        guess = a[0].flatten(1).mean(1, dtype=layout.dtype) if a.dim() > 2 else a[0].to(layout.dtype)
        _moments[layout.rows](a, guess, distance, squares, *layout.arguments)
        return guess, distance, squares

    @staticmethod
    def scale_and_shift(a, scale, shift):
        layout, out = _Layout(a), torch.empty_like(a)
        _scale_and_shift[layout.tiles](a, scale, shift, out, *layout.arguments)
        return out

    @staticmethod
    def gradient_sums(g, a, mu, *, per_sample):
        layout = _Layout(a)
        total, products = layout.two_moments(a)
        _gradient_sums[layout.rows](g, a, mu, total, products, *layout.arguments)
        return (total, products) if per_sample else (total.sum(0), products.sum(0))

    @staticmethod
    def input_gradient(g, a, scale, slope, offset):
        layout, out = _Layout(a), torch.empty_like(a)
        _input_gradient[layout.tiles](g, a, scale, slope, offset, out, *layout.arguments)
        return out
