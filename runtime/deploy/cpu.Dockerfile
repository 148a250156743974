# A server for bundles on CPU. From the root of the repository, with BuildKit:
#
#   docker build -f runtime/deploy/cpu.Dockerfile -t ssd-trt:cpu .
#
# or with a bundle inside, in place of one that is mounted at /bundle:
#
#   docker build -f runtime/deploy/cpu.Dockerfile --target with-bundle \
#       --build-context bundle=engines/bundles/demo -t ssd-trt:cpu-demo .
#
# How to run it: operations.md.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
# For our CPU kernels, which are compiled here: the image that runs has no compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
ARG EXTRAS=cpu,grammar,serve
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY engines engines
COPY plugins plugins
COPY runtime runtime
COPY export export
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/ssd-trt \
    && /opt/ssd-trt/bin/pip install ".[${EXTRAS}]" \
    && /opt/ssd-trt/bin/python -P -m plugins.ort --package

FROM ${PYTHON} AS base
RUN groupadd --gid 10001 ssd \
    && useradd --uid 10001 --gid ssd --no-create-home --shell /usr/sbin/nologin ssd \
    && install -d -o ssd -g ssd -m 0750 /var/cache/ssd-trt
COPY --from=build /opt/ssd-trt /opt/ssd-trt
# Measurements and kernels of this machine are kept in the one folder that is written to.
ENV PATH=/opt/ssd-trt/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ORT_DISABLE_TELEMETRY=1 \
    SSD_TRT_CACHE=/var/cache/ssd-trt
VOLUME /var/cache/ssd-trt
WORKDIR /opt/ssd-trt
USER 10001:10001
EXPOSE 8000
# Exec form: the server itself gets the signal, and finishes what runs. That takes up to
# --drain-timeout (30 s) and some more: run with --stop-timeout 45, and with --init, or a process
# number 1 that still loads its model would not hear it.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 \
    CMD ["python", "-c", "from http.client import HTTPConnection as To; to = To('127.0.0.1', 8000, timeout=4); to.request('GET', '/health'); raise SystemExit(to.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m", "runtime"]
CMD ["serve", "--bundle", "/bundle", "--host", "0.0.0.0"]

FROM base AS with-bundle
# hadolint ignore=DL3022
COPY --from=bundle --chown=10001:10001 . /bundle

FROM base AS server
