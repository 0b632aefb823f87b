"""What a launch is: anew, from a checkpoint, or only told."""
