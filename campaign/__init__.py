"""The campaign of faults: kinds x moments x modes, drawn from seeds, injected into true runs, and counted.

    python -m campaign --seed 7 --faults 300      a part of it; what it found goes to build/campaign
    python -m campaign --seed 7 --print           the plan of that seed, without doing it

What has to hold, what was found and how often each cell was met: docs/fault-tolerance.md.
"""
