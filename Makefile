# make demo       train the digits network on four Ray workers, and say where to look
# make demo-kill  kill a worker in the middle of a run, and compare the result with that of an undisturbed one
# make test       each claim once (docs/testing.md)
# make test-long  that, and products: more layouts, rarer misfortunes, more reruns, many more examples of every law
# make bench      what it costs beside its peers, as a table in docs/benchmarks/index.md; 20 minutes of a quiet machine
# make gpu        on a machine with a GPU: its bits, and its times beside plain PyTorch, into docs/benchmarks/gpu.md; 14 minutes, no setup
# make campaign   faults injected into true runs, and counted (docs/benchmarks/faults.md): SEED=1 FAULTS=300
# make docs       the site, in build/site; fails on a link that leads nowhere
# make check      lint and types (make lint), and beside them the tests that take milliseconds (make pure)
# Each makes .venv when it is missing. PYTHON is the interpreter it is made from. Demo and data are made by the environment that is
# active, where orchestrator is installed in it.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := $(VENV)/docs
# In the order of the files: the short ones come last and fill the processes to the end. One more than two cores: many wait for
# what they have started.
BY_FILE := python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
PURE := not ray and not slow and not long
QUICK := $(PURE) and not threads
MANY := --hypothesis-profile=many
ACTIVE := $(filter-out $(CURDIR)/$(VENV),$(or $(VIRTUAL_ENV),$(CONDA_PREFIX)))
# -P: the package in this folder is not one that is installed.
HAS_ALL := import sys; from importlib.util import find_spec; sys.exit(None in map(find_spec, ["orchestrator", "dvc", "sklearn"]))
USED := $(and $(ACTIVE),$(shell $(ACTIVE)/bin/python -Pc '$(HAS_ALL)' 2>/dev/null && echo $(ACTIVE)))
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
# Where it is set, each process compiles all tests and all of orchestrator anew: seven seconds.
unexport PYTHONDONTWRITEBYTECODE

PROJECT := .[examples,dev]
DASHBOARD := aiohttp-cors colorful distlib google-api-core googleapis-common-protos grpcio opencensus opencensus-context \
	opentelemetry-exporter-prometheus prometheus_client proto-plus py-spy python-discovery smart_open virtualenv wrapt

OTHERS := accelerate clearml cwevals datasets dill furl googleapis-common-protos grpcio httpcore httpx lightning \
	lightning-utilities Markdown multiprocess \
	opentelemetry-exporter-http-transport opentelemetry-exporter-otlp-common opentelemetry-exporter-otlp-proto-common \
	opentelemetry-exporter-otlp-proto-http orderedmultidict pathlib2 peft PyJWT pytorch-lightning sniffio tensorboard \
	tensorboard-data-server torchmetrics wandb xxhash

S3 := aiobotocore aioitertools boto3 botocore dvc-s3 jmespath moto py-partiql-parser responses s3fs s3transfer xmltodict

# Newer torchvisions, which mosaicml-streaming imports, want the operators of their own build of torch.
STREAMS := boto3 botocore braceexpand brotli catalogue cramjam jmespath lightning-utilities litdata mosaicml-streaming obstore \
	python-snappy s3transfer tifffile torchvision webdataset xxhash zstd

NOTEBOOKS := asttokens comm debugpy executing fastjsonschema ipykernel ipython ipython_pygments_lexers ipywidgets jedi \
	jupyter_client jupyter_core jupyterlab_widgets matplotlib-inline nbclient nbformat nest-asyncio2 parso pexpect \
	ptyprocess pure_eval pyzmq stack-data tornado traitlets widgetsnbextension

KERNELS := cuda-bindings cuda-pathfinder nvidia-cuda-nvrtc

COMMA := ,
# $(call SHOWN_IF_IT_FAILS,FILE,COMMAND): what the command says goes to the file, and is shown where it fails. pip warns once for
# each index that lacks a package, hundreds of times where one of several is a folder.
SHOWN_IF_IT_FAILS = { $(2) >$(1) 2>&1 || { status=$$?; cat $(1) >&2; echo "it failed: $(2)" >&2; exit $$status; } ; }

# $(call FILLED,FOLDER,PACKAGES): the packages in a folder of their own, which is filled anew when they or their versions have changed.
FILLED = held="$(sort $(2)) $$(cksum <constraints.txt)"; test "$$(cat $(VENV)/$(1)/.held 2>/dev/null)" = "$$held" || { \
	rm -rf $(VENV)/$(1) && $(call SHOWN_IF_IT_FAILS,$(VENV)/$(1).log,\
		python -m pip install --constraint constraints.txt --no-deps --target $(VENV)/$(1) $(2)) && echo "$$held" >$(VENV)/$(1)/.held; }

.PHONY: bench campaign gpu dashboard docs kernels notebooks others peers s3 streams setup demo demo-kill data test test-long check lint pure claims clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what is pinned into $(VENV): it takes minutes where nothing is there yet"
	@$(call SHOWN_IF_IT_FAILS,$(VENV)/install.log,$(BIN)/python -m pip install --constraint constraints.txt --editable '$(PROJECT)')
	touch $@

# The environment that is active, where it has all that these need, else .venv.
data demo demo-kill: $(if $(USED),,setup)
data demo demo-kill: export PATH := $(or $(USED),$(CURDIR)/$(VENV))/bin:$(PATH)

data:
	$(if $(USED),@echo "in the active environment $(USED)")
	dvc repro --quiet prepare_digits prepare_characters prepare_stream

demo:
	$(if $(USED),@echo "in the active environment $(USED)")
	dvc repro --quiet prepare_digits
	python -m orchestrator conf=digits

demo-kill:
	$(if $(USED),@echo "in the active environment $(USED)")
	dvc repro --quiet prepare_digits
	python -m benchmarks.demo_kill

check: setup
	$(MAKE) --no-print-directory --jobs 2 lint pure

lint: setup
	ruff check .
	ruff format --check .
	mypy

pure: setup
	python -m pytest -n 2 --dist worksteal -m "$(QUICK)"

# One pytest for the pure tests and the others: each of its processes reads all tests first, which takes ten seconds.
test: setup
	$(MAKE) --no-print-directory --jobs 2 lint claims

claims: setup data
	$(BY_FILE) -m "not long"

# What only the head of a Ray that takes jobs needs, ray[default]; in the environment itself it would slow down every start of Ray.
dashboard: setup
	@$(call FILLED,dashboard,$(DASHBOARD))

# In a folder of its own: what is installed in the environment is part of the identity of a run.
$(DOCS)/.installed: pyproject.toml constraints.txt | setup
	@rm -rf $(DOCS)
	@$(call SHOWN_IF_IT_FAILS,$(VENV)/docs.log,python -m pip install --constraint constraints.txt --target $(DOCS) \
		$$(python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml"$(COMMA) "rb"))["project"]["optional-dependencies"]["docs"])'))
	@touch $@

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(DOCS) python -m mkdocs build --strict

# What only tests of object stores need: a server of S3, and the clients of it that fsspec and DVC take.
s3: setup
	@$(call FILLED,s3,$(S3))

# The trackers and trainers of others, which tests of docs/coming-from.md, of tracking.also and of adapters execute.
others: setup
	@$(call FILLED,others,$(OTHERS))

# A true Jupyter, in which tests execute docs/python.md.
notebooks: setup
	@$(call FILLED,notebooks,$(NOTEBOOKS))

# What compiles kernels for cards; torch's build for CUDA brings it.
kernels: setup
	@$(call FILLED,kernels,$(KERNELS))

# What only tests of readers need: the packages that wrote the files.
streams: setup
	@$(call FILLED,streams,$(STREAMS))

# What Ray Train imports, beside which benchmarks are run.
peers: setup
	@$(call FILLED,peers,tensorboardX)

bench: data peers
	PYTHONPATH=$(CURDIR)/$(VENV)/peers python -m benchmarks.bench --page docs/benchmarks/index.md

# With the python that is active and the packages it finds: a machine with a GPU may have no package index. Two commands, each of at
# most 8 minutes, since such a machine may be lent for one at a time; times are measured also where a check failed.
gpu:
	python=$$(command -v python || echo python3); page=docs/benchmarks/gpu.md; \
	$$python -m benchmarks.gpu --check --page $$page; checked=$$?; test $$checked -ne 2 || exit 2; \
	$$python -m benchmarks.gpu --page $$page && exit $$checked

SEED ?= 1
FAULTS ?= 300

campaign: setup
	python -m campaign --seed $(SEED) --faults $(FAULTS)

test-long: test docs dashboard s3 streams others peers kernels notebooks
	python -m pytest -n 2 $(MANY) -m "$(PURE)"
	$(BY_FILE) $(MANY) -m long

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
