# The whole service in one image: HTTP side and worker. Needs no network when it runs, unless CONDUIT_MODEL names a hub model.
#   docker build -f docker/api.Dockerfile -t conduit .
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /app
# The CPU build of torch; empty for the default one, which brings CUDA (docker-compose.gpu.yml does that).
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements.lock requirements-otel.lock ./
RUN python3 -m venv .venv \
    && PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" .venv/bin/pip install --no-cache-dir --disable-pip-version-check \
        -r requirements.lock -r requirements-otel.lock
# The command `conduit`, which runs what the last stage puts beside it.
COPY pyproject.toml README.md LICENSE ./
RUN for package in service engine store demo; do mkdir $package && touch $package/__init__.py; done \
    && .venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --editable .

FROM ${BASE}
RUN useradd --system --uid 10001 --home-dir /app conduit \
    && install -d -o conduit /var/lib/conduit /var/lib/hub
WORKDIR /app
COPY --from=build /app/.venv .venv
COPY store store
COPY engine engine
COPY service service
COPY demo demo
COPY models models
ENV CONDUIT_HOST=0.0.0.0 \
    CONDUIT_PORT=8000 \
    CONDUIT_TRUSTED_HOSTS=api \
    CONDUIT_STORE_PATH=/var/lib/conduit \
    HF_HOME=/var/lib/hub \
    PATH=/app/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1
USER conduit
VOLUME /var/lib/conduit /var/lib/hub
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD [".venv/bin/python", "-c", \
    "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"CONDUIT_PORT\"]}/livez', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT [".venv/bin/python", "-m", "service"]
