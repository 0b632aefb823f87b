"""What happens to a summed gradient before it has changed the parameters: clipping, then an optimizer."""
