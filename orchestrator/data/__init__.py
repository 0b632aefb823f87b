"""Which samples a micro-batch holds (pure), and fetching them."""
