"""Which samples a micro-batch holds, fetching them, and describing them. The tables of `orchestrator.data.sampling` say what a
shard may draw from and how likely each sample is; here they are asked, and their answers become rows of micro-batches.

    labels.py                      what the pipeline says of its samples, which the tables ask for
    division.py                    what each client owns, by the tables
    order.py, drawn.py             rows of a micro-batch: of epochs of all samples, of parts or by weights
    positions.py                   which samples of its stream a shard takes, where they have no numbers
    clients.py, poisson.py         which client a shard plays in a round, and the rows of its local steps
    fetching.py, loaders.py        a batch of these rows: in the compute thread, or ahead by processes
    profile.py, sketch.py          how a data set is distributed; profiling.py: by a process of its own
    drift.py                       whether two data sets are distributed alike
"""
