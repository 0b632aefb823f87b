"""Found out before anything is started: what is wrong, what keeps a run from being repeated, weights, the secret."""
