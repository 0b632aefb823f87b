"""Export a run, or something of it: a module for each kind of thing.

Everything comes from the record, the data and the weights that the run began with from where a rerun takes them, hashed; the
project is only read. The same record makes the same bytes, so two exports can be compared.
"""
