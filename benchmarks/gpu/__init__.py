"""`python -m benchmarks.gpu`: what this program does on a GPU: its bits, then its times beside plain PyTorch."""
