"""A batch job of Slurm: a Ray of its own over the nodes of the allocation, for the time of one command.

    batch.py   on the first node, in the batch script's own process: has the Ray started, runs the command, passes signals on
    node.py    on every node, the one task of the step that `batch` starts: a node of the Ray, as long as the step lasts
    host.py    what both ask of their host

The two talk through srun. A node prints one JSON object when its Ray is up or could not start. Input of srun goes to all
nodes: a line with the address of the head, and the end of the file when the Ray is to end. So no node outlives the job,
however that ended.

Not by `ray symmetric-run`: it refuses to start beside any other Ray, ends with success where none came up, and at its end stops
every Ray of this user on the node.
"""
