"""The epsilon of so many rounds, by Google's dp-accounting, which is imported here only and when it is needed.

Each round releases the sum of clipped contributions of clients drawn by Poisson sampling, plus Gaussian noise; rounding the sum
with its noise is post-processing, so the account of continuous noise holds. Neighbours are data sets of which one has all
samples of one more client.

Source: Mironov, Talwar and Zhang, "Renyi differential privacy of the sampled Gaussian mechanism" (2019).
"""

from __future__ import annotations

import importlib.util
from typing import Final

from orchestrator.errors import coded

# Whole orders have a closed form; the sums of others need not converge.
_ORDERS: Final = (*range(2, 64), *range(64, 128, 4), *range(128, 257, 16), 384, 512, 1024)

MISSING: Final = coded(
    "privacy.no-accounting",
    "privacy.noise_multiplier: the epsilon of a run is counted by dp-accounting, which is not installed: "
    "pip install 'orchestrator[privacy]' (or: pip install 'dp-accounting>=0.6,<0.7')",
)


def is_installed() -> bool:
    return importlib.util.find_spec("dp_accounting") is not None


class Accountant:
    """Computes the epsilon of a private run. noise: its standard deviation, in clipping norms; rate: the chance of a client to
    play in a round."""

    def __init__(self, noise: float, rate: float, delta: float) -> None:
        import dp_accounting
        from dp_accounting import rdp

        gaussian = dp_accounting.GaussianDpEvent(noise)
        accountant = rdp.RdpAccountant(_ORDERS)
        accountant.compose(gaussian if rate >= 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian))
        self._orders, self._of_one = accountant.orders, accountant.rdp
        self._epsilon = rdp.compute_epsilon
        self._delta = delta

    def epsilon(self, rounds: int) -> float:
        """The epsilon of so many rounds together: their Renyi divergences add up."""
        return float(self._epsilon(self._orders, self._of_one * rounds, self._delta)[0]) if rounds else 0.0
