#!/usr/bin/env bash
# A card in software for the CUDA build of torch that PYTHON has (2.11.0, as PyPI has it, with --no-deps): build.sh PYTHON FOLDER
# Then, with this folder's nvidia-smi on PATH: LD_LIBRARY_PATH=FOLDER PYTHON -m orchestrator conf=digits run.device=cuda ...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); python=$1; out=$2; mkdir -p "$out"
torch=$("$python" -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("torch").origin).parent)')
cuda=${CUDA_HOME:-/usr/local/cuda-13.0}
for library in $("$python" "$here/wanted.py" "$torch/lib" "$out"); do
    map=""; [ -f "$out/$library.map" ] && map="-Wl,--version-script=$out/$library.map"
    c++ -O1 -fPIC -shared -nostartfiles "$out/$library.cpp" $map -Wl,-soname,"$library" -o "$out/$library"
done
c++ -std=c++17 -O2 -fPIC -shared -fvisibility=hidden -ffp-contract=off -fsanitize=alignment -fsanitize-undefined-trap-on-error -I"$cuda/include" -I"$here/../../orchestrator/numerics/device" "$here/runtime.cpp" "$here/kernels.cpp" "$out/rest.cpp" \
    -Wl,-soname,libcudart.so.13 -Wl,--version-script="$out/rest.map" -o "$out/libcudart.so.13" -ldl -lpthread
for name in libcuda.so.1 libnvidia-ml.so.1; do ln -sf libcudart.so.13 "$out/$name"; done
abi=$("$python" -c 'import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))' 2>/dev/null || echo 1)
c++ -std=c++17 -O1 -fPIC -shared -D_GLIBCXX_USE_CXX11_ABI="$abi" -w -I"$here" -I"$cuda/include" -I"$torch/include" -I"$torch/include/torch/csrc/api/include" \
    "$here/operations.cpp" -L"$torch/lib" -L"$out" -ltorch -ltorch_cpu -ltorch_cuda -lc10 -lc10_cuda -Wl,--allow-shlib-undefined -l:libcudart.so.13 -l:libgomp.so.1 -o "$out/operations.so"
