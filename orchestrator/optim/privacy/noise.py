"""Normal numbers from secret bits, rounded to integers: the inverse of the normal distribution at uniform numbers.

    two words of 64 bits    a sign, 63 + 48 bits of a probability up to 1/2, 16 bits that decide how it is rounded

Sums are exact, so an observer of one sees the last bit of its noise. If some integers near a number of the noise could not come
up, whoever knows all other contributions could tell whether a client took part. With 52 bits that was so beyond 4 standard
deviations. With 111 bits every integer can come up, up to 8 of them for noise of 1000 clipping norms. The bits that decide
which of the two nearest integers it is keep the chances of neighbouring integers alike.

Everything is made of additions, products, quotients and square roots in float64. Each is an operation of its own, which is
rounded as IEEE 754 says, so every processor and every GPU has the same numbers. Logarithms of libraries depend on where they
are computed. On a GPU the operations are torch's. On processors they are numpy's, since torch's square roots are not rounded so
there. The bits are made by processors, as no key is to lie on a GPU. Tails end at 12.2 standard deviations, which leaves out a
chance of 2**-112 for each number.

Source: Mironov, "On significance of the least significant bits for differential privacy" (2012); Wichura, "Algorithm AS 241:
The percentage points of the normal distribution" (1988), PPND16, relative error 1e-16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy
import torch

from orchestrator.optim.privacy.keys import Stream

Numbers = Any  # an array of numpy, or a tensor of torch on a device; float64 unless it says otherwise

_ON_DEVICE: Final = 1 << 22  # numbers that a device makes at a time
_WORDS: Final = 2  # of the stream for each number
_ROUNDING_BITS: Final = 16
_CENTRAL: Final = 0.425
_CENTER: Final = (
    (
        3.3871328727963666080e0,
        1.3314166789178437745e2,
        1.9715909503065514427e3,
        1.3731693765509461125e4,
        4.5921953931549871457e4,
        6.7265770927008700853e4,
        3.3430575583588128105e4,
        2.5090809287301226727e3,
    ),
    (
        1.0,
        4.2313330701600911252e1,
        6.8718700749205790830e2,
        5.3941960214247511077e3,
        2.1213794301586595867e4,
        3.9307895800092710610e4,
        2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)
_MIDDLE: Final = (
    (
        1.42343711074968357734e0,
        4.63033784615654529590e0,
        5.76949722146069140550e0,
        3.64784832476320460504e0,
        1.27045825245236838258e0,
        2.41780725177450611770e-1,
        2.27238449892691845833e-2,
        7.74545014278341407640e-4,
    ),
    (
        1.0,
        2.05319162663775882187e0,
        1.67638483018380384940e0,
        6.89767334985100004550e-1,
        1.48103976427480074590e-1,
        1.51986665636164571966e-2,
        5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)
_FAR: Final = (
    (
        6.65790464350110377720e0,
        5.46378491116411436990e0,
        1.78482653991729133580e0,
        2.96560571828504891230e-1,
        2.65321895265761230930e-2,
        1.24266094738807843860e-3,
        2.71155556874348757815e-5,
        2.01033439929228813265e-7,
    ),
    (
        1.0,
        5.99832206555887937690e-1,
        1.36929880922735805310e-1,
        1.48753612908506148525e-2,
        7.86869131145613259100e-4,
        1.84631831751005468180e-5,
        1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ),
)
_LN2: Final = 0.6931471805599453
_SERIES: Final = 13  # terms of the series of atanh for arguments up to 1/6, whose next one is below 2**-60


def normal(stream: Stream, elements: int, deviation: float, device: torch.device) -> Iterator[torch.Tensor]:
    """Independent normal numbers of this standard deviation, each rounded by chance to one of the two integers beside it: int64
    on the device, in pieces that follow one another."""
    if device.type == "cpu":
        for _, bits in stream.pieces(_WORDS * elements):
            yield torch.from_numpy(rounded(bits.view(numpy.int64), deviation).astype(numpy.int64))
        return
    for first in range(0, elements, _ON_DEVICE):
        words = _WORDS * min(_ON_DEVICE, elements - first)
        taken = torch.empty(words, dtype=torch.int64, pin_memory=device.type == "cuda")
        stream.fill(taken.numpy())
        yield rounded(taken.to(device, non_blocking=True), deviation).to(torch.int64)


def rounded(words: Numbers, deviation: float) -> Numbers:
    """A whole number, in float64, from each two words (int64)."""
    of = _library(words)
    first, second = words[::_WORDS], words[1::_WORDS]
    size = quantiles(_probabilities(first, second))
    exact = of.where(first < 0, -size, size) * deviation
    lowest = second & ((1 << _ROUNDING_BITS) - 1)
    return of.floor(exact + (_widened(lowest) + 0.5) * 2.0**-_ROUNDING_BITS)


def _probabilities(first: Numbers, second: Numbers) -> Numbers:
    """Above 0, up to 1/2; the smaller, the closer they lie."""
    low_bits = 64 - _ROUNDING_BITS
    low = (second >> _ROUNDING_BITS) & ((1 << low_bits) - 1)  # without the sign
    high = first & ((1 << 63) - 1)
    return (_widened(high) + (_widened(low) + 0.5) * 2.0**-low_bits) * 2.0**-64


def _widened(words: Numbers) -> Numbers:
    return words.double() if isinstance(words, torch.Tensor) else words.astype(numpy.float64)


def quantiles(p: Numbers) -> Numbers:
    """At which the standard normal distribution has these probabilities, all above 0 and below 1."""
    of = _library(p)
    q = p - 0.5
    found = q * _quotient(_CENTER, 0.180625 - q * q)
    outside = of.abs(q) > _CENTRAL
    tail, side = p[outside], q[outside]
    r = of.sqrt(-_log(of.minimum(tail, 1.0 - tail)))
    sizes = of.where(r > 5.0, _quotient(_FAR, r - 5.0), _quotient(_MIDDLE, r - 1.6))
    found[outside] = of.copysign(sizes, side)
    return found


def _library(numbers: Numbers) -> Any:
    return torch if isinstance(numbers, torch.Tensor) else numpy


def _quotient(polynomials: tuple[Sequence[float], Sequence[float]], x: Numbers) -> Numbers:
    above, below = (_horner(coefficients, x) for coefficients in polynomials)
    above /= below
    return above


def _horner(coefficients: Sequence[float], x: Numbers) -> Numbers:
    """The first one is the constant."""
    of = _library(x)
    value = of.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value *= x
        value += coefficient
    return value


def _log(x: Numbers) -> Numbers:
    """The natural logarithm: x = m * 2**e with m near 1, and log(m) = 2 atanh((m - 1) / (m + 1))."""
    of = _library(x)
    mantissa, exponent = of.frexp(x)
    low = mantissa < 0.75
    mantissa = of.where(low, mantissa * 2.0, mantissa)  # 0.75 to 1.5
    exponent = of.zeros_like(x) + of.where(low, exponent - 1, exponent)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _horner([1.0 / (2 * n + 1) for n in range(_SERIES)], s * s)
    return exponent * _LN2 + 2.0 * s * series
