"""Which training samples a shard draws from, and how likely: tables of pure functions over the numbers of the samples.
`orchestrator.data` draws from them, step by step.

    population.py     what a run gives to an entry of the next two tables
    partitions.py     who owns which sample
    samplings.py      how likely a shard draws each sample of its part
    subsets.py        which samples a run has at all
    orders.py         in which order an epoch visits them

numpy is imported where a function computes: the settings read these tables, and do without it.
"""
