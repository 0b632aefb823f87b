"""Choose settings of the layout by measurement."""
