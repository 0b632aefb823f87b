"""The way of a summed gradient into the parameters: clipping, then an optimizer."""
