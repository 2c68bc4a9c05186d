# python_env: a virtual environment below build/ with the package as a wheel, PyTorch and what the
# tests and the demo take. Sourced by the other scripts, after step.sh. Needs Python 3.10 or later, what the
# library needs (scripts/deps), and a package index for pip.

python_env=build/python-env
python=$python_env/bin/python
torch=2.13.0
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

# One version of nanobind, whose stubs the golden one is compared with.
make_environment() {
  [ -x "$python" ] || "${PYTHON:-python3}" -m venv "$python_env"
  pip install scikit-build-core nanobind==3.1.0 numpy ml_dtypes pytest tokenizers safetensors
}

# The index's own build where that is one for the CPU, else the one of PyTorch's index for CPUs: others
# bring gigabytes that nothing here uses. It is looked at before anything is downloaded.
find_torch() {
  "$python" -c 'import torch' 2>/dev/null && return
  if pip install --dry-run --quiet --report "$python_env/torch.json" "torch==$torch" &&
    ! grep -qiE '"name": "(nvidia|cuda|triton|pytorch-triton)' "$python_env/torch.json"; then
    pip install "torch==$torch"
  else
    pip install "torch==$torch" --index-url https://download.pytorch.org/whl/cpu
  fi
}

build_wheel() {
  rm -rf build/wheel
  pip wheel --no-build-isolation --no-deps -w build/wheel .
  pip install --force-reinstall --no-deps build/wheel/ubep-*.whl
}

python_env() {
  step "environment" make_environment
  if step "PyTorch $torch" find_torch; then
    step "transformers" pip install "transformers>=5,<6"
  else
    echo "without PyTorch: pip found no torch $torch for this machine"
  fi
  step "wheel" build_wheel
}
