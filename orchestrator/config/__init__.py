"""Keys of the configuration, and the plan that follows from them."""
