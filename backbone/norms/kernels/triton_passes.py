"""The passes over the activation as Triton kernels, for CUDA devices; `TRITON_INTERPRET=1` runs them on a CPU.

One program handles one sample and a block of channels, walking over space in blocks; strides make the same kernels
serve contiguous and channels-last activations. Sums are taken in float32, or float64 for float64 activations.

Traffic per activation element, in elements (`python -m scripts.bench norms` prints it in bytes beside BN's):

    moments          1 read            the sample moments of a block are merged by Chan's update, so one read is enough
    scale_and_shift  1 read, 1 write
    gradient_sums    2 reads
    input_gradient   2 reads, 1 write

which is BN's own: two reads and a write forward, four reads and a write backward. What lies between is one kernel too
each way, because at small batches a step costs what its launches cost.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from backbone.norms.kernels.fused import Coefficients, Statistics, TensorPasses, is_channels_last
from backbone.norms.kernels.weighted import compute_dtype

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


@triton.jit
def _statistics(guess, distance, squares, weights, gamma, beta, eps, mu, sigma2, inverse, scale, shift, N, C, area,
                ACC: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = c < C
    origin = tl.load(guess + c, inside, other=0.0)
    total = tl.zeros((BC,), ACC)
    mean = tl.zeros((BC,), ACC)
    for n in range(N):
        weight = tl.load(weights + n)
        total += weight
        mean += weight * tl.load(distance + n * C + c, inside, other=0.0)
    mean -= origin * (1 - total)
    variance = tl.zeros((BC,), ACC)
    for n in range(N):
        spread = tl.load(distance + n * C + c, inside, other=0.0) - mean
        variance += tl.load(weights + n) * (tl.load(squares + n * C + c, inside, other=0.0) / area + spread * spread)
    factor = 1 / tl.sqrt(variance + tl.load(eps))
    s = tl.load(gamma + c, inside, other=0.0) * factor
    tl.store(mu + c, origin + mean, inside)
    tl.store(sigma2 + c, variance, inside)
    tl.store(inverse + c, factor, inside)
    tl.store(scale + c, s, inside)
    tl.store(shift + c, tl.load(beta + c, inside, other=0.0) - (origin + mean) * s, inside)


@triton.jit
def _coefficients(d_scale, d_beta, g_mu, g_sigma2, guess, distance, squares, weights, mu, inverse, scale, d_gamma,
                  slope, offset, d_weights, N, C, area, ACC: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """The gradients of the weights are sums over channels: here those of a block, one row each."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = c < C
    missing = tl.zeros((BC,), ACC) + 1
    for n in range(N):
        missing -= tl.load(weights + n)
    m = tl.load(mu + c, inside, other=0.0)
    origin = tl.load(guess + c, inside, other=0.0)
    factor = tl.load(inverse + c, inside, other=0.0)
    s = tl.load(scale + c, inside, other=0.0)
    of_gamma = tl.load(d_scale + c, inside, other=0.0) * factor
    of_sigma2 = tl.load(g_sigma2 + c, inside, other=0.0) - of_gamma * s * factor * 0.5
    of_mu = tl.load(g_mu + c, inside, other=0.0) - s * tl.load(d_beta + c, inside, other=0.0)
    of_mu -= 2 * of_sigma2 * missing * m
    level = of_mu - 2 * of_sigma2 * m
    tl.store(d_gamma + c, of_gamma, inside)
    for n in range(N):
        weight = tl.load(weights + n) / area
        from_guess = tl.load(distance + n * C + c, inside, other=0.0)
        spread = from_guess - (m - origin)
        square = tl.load(squares + n * C + c, inside, other=0.0) / area + spread * spread
        tl.store(slope + n * C + c, 2 * weight * of_sigma2, inside)
        tl.store(offset + n * C + c, weight * level, inside)
        part = tl.where(inside, (origin + from_guess) * of_mu + square * of_sigma2, 0.0)
        tl.store(d_weights + tl.program_id(0) * N + n, tl.sum(part, 0))


SMALL_CHANNELS = 64  # of a program of the two kernels above


@cache
def _tensor_of(value: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As an argument of a kernel it would be rounded to float32."""
    return torch.full((1,), value, dtype=dtype, device=device)


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
        self.arguments = (c, s, *strides, _acc(a), block_c, block_s)
        self.rows = (n, triton.cdiv(c, block_c))  # one program walks over all of space
        self.tiles = (*self.rows, triton.cdiv(s, block_s))
        self.moments_shape, self.dtype = (n, c), compute_dtype(a)

    def two_moments(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.empty(self.moments_shape, dtype=self.dtype, device=like.device) for _ in range(2))


class TritonPasses(TensorPasses):
    """With tensor operations for the statistics within groups only."""

    name = "triton"

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

    @staticmethod
    def statistics(moments, weights, same_group, gamma, beta, area, eps):
        if same_group is not None:
            return TensorPasses.statistics(moments, weights, same_group, gamma, beta, area, eps)
        guess, distance, squares = moments
        n, c = distance.shape
        found = Statistics(*(torch.empty_like(guess) for _ in Statistics._fields))
        limit = _tensor_of(eps, guess.dtype, guess.device)
        given = (guess, distance, squares, weights.contiguous(), gamma, beta, limit)
        _statistics[(triton.cdiv(c, SMALL_CHANNELS),)](*given, *found, n, c, area, _acc(guess), SMALL_CHANNELS)
        return found

    @staticmethod
    def coefficients(sums, g_mu, g_sigma2, moments, weights, same_group, of, area):
        if same_group is not None:
            return TensorPasses.coefficients(sums, g_mu, g_sigma2, moments, weights, same_group, of, area)
        (d_beta, d_scale), (guess, distance, squares) = sums, moments
        n, c = distance.shape
        blocks = triton.cdiv(c, SMALL_CHANNELS)
        nothing = torch.zeros_like(guess) if g_mu is None or g_sigma2 is None else None
        through = (nothing if gradient is None else gradient.contiguous() for gradient in (g_mu, g_sigma2))
        given = (d_scale, d_beta, *through, guess, distance, squares, weights.contiguous(), of.mu, of.inverse, of.scale)
        slope, offset = torch.empty_like(distance), torch.empty_like(distance)
        found = Coefficients(torch.empty_like(guess), slope, offset, distance.new_empty(blocks, n))
        _coefficients[(blocks,)](*given, *found, n, c, area, _acc(guess), SMALL_CHANNELS)
        return found._replace(d_weights=found.d_weights.sum(0))


def _acc(like: torch.Tensor):
    return tl.float64 if like.dtype == torch.float64 else tl.float32
