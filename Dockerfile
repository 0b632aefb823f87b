# The package with its dependencies as they were tested, for KubeRay (docs/jobs.md) or for running it by hand:
#   docker build -t orchestrator . && docker run --rm -v "$PWD:/project" -w /project orchestrator conf=digits
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
WORKDIR /package
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY orchestrator orchestrator
# The CPU build of torch; for GPUs leave the index out.
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu ".[examples]" "ray[default]"
ENTRYPOINT ["python", "-m", "orchestrator"]
