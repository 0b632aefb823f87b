"""Whether `run.threads` above one keeps its bits: the same operators in many processes, whose memory lies elsewhere in each.

    python -m benchmarks.threads --processes 1000 --threads 4

Each process computes every case of the page of operators (docs/portable.md) and larger ones, which torch divides among its
threads, at addresses that are drawn anew. A case whose hash is not the same in all processes is printed, with how many hashes
it has. With `--set MKL_CBWR=AVX2` the processes get that variable.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from orchestrator.numerics import determinism

determinism.prepare_environment()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from orchestrator.numerics.portable import checking  # noqa: E402
from orchestrator.numerics.portable.conformance import PAGE, elementwise  # noqa: E402
from orchestrator.numerics.portable.conformance.drawing import Case, results  # noqa: E402

LENGTHS = (4096, 33_333, 131_079, 500_001)  # torch divides from 32,768 elements on
SIDES = ((64, 64, 64), (129, 515, 67), (256, 1024, 1024), (8, 4096, 1024))
SLOW = {"optimizer Adadelta"}  # imports torch's compiler
Function = Callable[[Tensor], Tensor]
SHAPED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "norm": lambda x: x.norm(),
    "variance": lambda x: x.var(),
    "softmax": lambda x: F.softmax(x, -1),
    "log softmax": lambda x: F.log_softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:], torch.ones(x.shape[-1], requires_grad=True)),
    "cumulative sum": lambda x: x.cumsum(0),
}


def _of(function: Function, *shape: int) -> Case:
    return lambda d: d.both(function, d(*shape))


def _product(m: int, k: int, n: int) -> Case:
    return lambda d: d.both(torch.mm, d(m, k), d(k, n))


def _linear(m: int, k: int, n: int) -> Case:
    return lambda d: d.both(F.linear, d(m, k), d(n, k), d(n))


def _convolution(batch: int, channels: int, side: int) -> Case:
    return lambda d: d.both(F.conv2d, d(batch, channels, side, side), d(32, channels, 3, 3), d(32))


def _normalised(batch: int, channels: int, side: int) -> Case:
    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, weight, bias, training=True)

    return lambda d: d.both(norm, d(batch, channels, side, side), d(channels), d(channels))


def _larger() -> dict[str, Case]:
    single: dict[str, Function] = {**elementwise.ACTIVATIONS, **elementwise.FUNCTIONS}
    cases = {f"{name}, {length}": _of(function, length) for length in LENGTHS for name, function in single.items()}
    for length in LENGTHS:
        for name, function in elementwise.OF_POSITIVE.items():
            cases[f"{name}, {length}"] = _of(_of_positive(function), length)
    for shape in ((257, 129), (1024, 513)):
        for name, function in SHAPED.items():
            cases[f"{name}, {shape[0]} x {shape[1]}"] = _of(function, *shape)
    for sides in SIDES:
        cases[f"product, {' x '.join(map(str, sides))}"] = _product(*sides)
        cases[f"linear, {' x '.join(map(str, sides))}"] = _linear(*sides)
    for images in ((4, 16, 28), (16, 32, 14), (8, 3, 56)):
        cases[f"convolution, {' x '.join(map(str, images))}"] = _convolution(*images)
        cases[f"batch norm, {' x '.join(map(str, images))}"] = _normalised(*images)
    cases["attention, 4 x 4 x 128 x 32"] = lambda d: d.both(
        F.scaled_dot_product_attention, *(d(4, 4, 128, 32) for _ in range(3))
    )
    cases["embedding, 512 x 64"] = lambda d: d.both(F.embedding, d.integers(512, 16, 128), d(512, 64))
    return cases


def _of_positive(function: Function) -> Function:
    return lambda x: function(x.abs() + 0.01)


def hashes(threads: int) -> dict[str, str]:
    """By case, in this process; "raises" for one that this torch does not compute deterministically."""
    determinism.prepare_thread(threads)
    torch.set_num_threads(threads)
    place = random.Random(os.getpid())
    kept: list[Tensor] = []  # moves what is allocated next
    found = {}
    for name, case in {**PAGE, **_larger()}.items():
        if name in SLOW:
            continue
        kept.append(torch.empty(place.randrange(1, 4000) * 16))
        found[name] = checking.hash_of(results(case, name))
    return found


def study(processes: int, threads: int, variables: dict[str, str], beside: int) -> dict[str, Counter[str]]:
    """By case how often each hash came out."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    command = (sys.executable, "-m", "benchmarks.threads", "--child", "--threads", str(threads))

    def one(_: int) -> dict[str, str]:
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))

    with ThreadPoolExecutor(beside) as pool:
        for found in pool.map(one, range(processes)):
            for name, digest in found.items():
                counts[name][digest] += 1
    return counts


def differing(counts: dict[str, Counter[str]]) -> Iterator[str]:
    for name, seen in counts.items():
        if len(seen) > 1:
            yield f"{name}: {len(seen)} hashes, {' '.join(str(n) for _, n in seen.most_common(6))}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--beside", type=int, default=2, help="processes at a time")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        print(json.dumps(hashes(given.threads)))
        return
    variables = dict(pair.split("=", 1) for pair in given.set)
    counts = study(given.processes, given.threads, variables, given.beside)
    lines = list(differing(counts))
    print(
        f"{given.processes} processes, {given.threads} threads, {variables}: {len(lines)} of {len(counts)} cases differ"
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
