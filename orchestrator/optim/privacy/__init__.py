"""Privacy of single clients: clipped contributions on a fixed quantization grid, noise from a secret, masks.

    secret      the file that it lies in, and the keys that follow from it and from what a run is made of
    keys        bits that nobody guesses who does not have them
    noise       the Gaussian contribution of a round
    lattice     contributions as integers of bounded norm
    masks       what hides a worker's sum from those who add it up
    accounting  the epsilon of so many rounds

The modules know no engine and no settings. dp-accounting is imported on this floor only.
"""
