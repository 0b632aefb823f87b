"""Which member or micro-batch is at fault. Pure."""
