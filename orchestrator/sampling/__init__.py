"""Which training samples a shard draws from, and how: tables of pure functions over the numbers of the samples.

    population.py     what a run gives to an entry of either table
    partitions/       who owns which sample
    samplings.py      how likely a shard draws each sample of its part

numpy is imported where a function computes: the settings read these tables, and do without it.
"""
