"""Portable arithmetic: the same bits on every x86-64 processor with AVX2, Intel's and AMD's, with and without AVX-512.

Three things make it, under `run.arithmetic: portable`:

- `determinism.PORTABLE`: variables that let torch, MKL and oneDNN choose the same code everywhere, set before torch is loaded;
- `operator_overrides`: what the chosen code still computes with the processor's approximate reciprocal or root, whose bits
  every maker defines otherwise (MKL's square root, oneDNN's LSTM), is computed by what rounds as IEEE 754 says;
- `conformance`: operators with their known hashes, forward and backward. A worker finds out which operators its pipeline uses
  (`used`) and computes their cases (`checking`); a run is refused where one comes out otherwise.

`docs/portable.md` has the table of operators. Not covered are GPUs, other architectures and other versions of torch.
"""
