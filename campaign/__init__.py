"""The campaign of faults: kinds x moments x modes, drawn from seeds, injected into true runs, and counted.

    python -m campaign --seed 7 --faults 300      a part of it; what it found goes to build/campaign
    python -m campaign --seed 7 --print           the plan of that seed, without doing it

The claims, the findings and the count of each cell are in docs/fault-tolerance.md and docs/benchmarks/faults.md.
"""
