# The authority as an image: docs/container.md. Every step is a list of arguments: no shell takes part in any.
# A tag can be moved. To hold the base still, build with --build-arg BASE=python:3.11.14-slim-trixie@sha256:...
ARG BASE=python:3.11.14-slim-trixie


FROM ${BASE} AS build
WORKDIR /build
ENV UV_PYTHON=/usr/local/bin/python3.11 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
COPY container/build.txt container/
RUN ["python3.11", "-m", "pip", "install", "--no-cache-dir", "--only-binary", ":all:", "--require-hashes", "--requirement", "container/build.txt"]

# What we need, as locked: only a new lock repeats these steps. A package whose hash is another ends the build.
COPY pyproject.toml uv.lock ./
COPY client/pyproject.toml client/
COPY server/pyproject.toml server/
COPY authority/pyproject.toml authority/
COPY page/pyproject.toml page/
COPY regions/pyproject.toml regions/
COPY spark_listener/pyproject.toml spark_listener/
COPY pipeline/pyproject.toml pipeline/
RUN ["uv", "export", "--frozen", "--quiet", "--package", "lowwater-authority", "--package", "lowwater-page", "--package", "lowwater-regions", "--extra", "redis", "--extra", "otel", "--no-default-groups", "--no-emit-workspace", "--output-file", "requirements.txt"]
RUN ["uv", "venv", "--no-project", "/opt/lowwater"]
RUN ["uv", "pip", "install", "--python", "/opt/lowwater", "--require-hashes", "--only-binary", ":all:", "--requirement", "requirements.txt"]

# What we are. Nothing is looked for elsewhere: the wheels were just made, and what they need is there.
COPY client client
COPY server server
COPY authority authority
COPY page page
COPY regions regions
RUN ["uv", "build", "--quiet", "--wheel", "--package", "lowwater", "--out-dir", "wheels", "--require-hashes", "--build-constraints", "container/build.txt"]
RUN ["uv", "build", "--quiet", "--wheel", "--package", "lowwater-server", "--out-dir", "wheels", "--require-hashes", "--build-constraints", "container/build.txt"]
RUN ["uv", "build", "--quiet", "--wheel", "--package", "lowwater-authority", "--out-dir", "wheels", "--require-hashes", "--build-constraints", "container/build.txt"]
RUN ["uv", "build", "--quiet", "--wheel", "--package", "lowwater-page", "--out-dir", "wheels", "--require-hashes", "--build-constraints", "container/build.txt"]
RUN ["uv", "build", "--quiet", "--wheel", "--package", "lowwater-regions", "--out-dir", "wheels", "--require-hashes", "--build-constraints", "container/build.txt"]
RUN ["uv", "pip", "install", "--python", "/opt/lowwater", "--no-index", "--find-links", "wheels", "--no-deps", "lowwater", "lowwater-server", "lowwater-authority", "lowwater-page", "lowwater-regions"]
RUN ["uv", "pip", "check", "--python", "/opt/lowwater"]


FROM ${BASE}
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lowwater" \
      org.opencontainers.image.description="The low-watermark authority: keeps, journals and broadcasts the watermarks of a pipeline." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Nothing is installed here any more.
RUN ["python3.11", "-m", "pip", "uninstall", "--yes", "pip", "setuptools", "wheel"]
RUN ["rm", "-rf", "/usr/local/lib/python3.11/ensurepip"]
RUN ["install", "--directory", "--owner=65532", "--group=65532", "--mode=0700", "/data"]
COPY --from=build /opt/lowwater /opt/lowwater
ENV PATH=/opt/lowwater/bin:/usr/local/bin:/usr/bin:/bin HOME=/data
# It runs; and leaves the bytecode of what it imports of the standard library, which the base lacks and nobody can write later: a second of each start.
RUN ["lowwater", "serve", "--help"]

# gRPC writes a line of its own for every handshake that fails, among those of JSON.
ENV PYTHONDONTWRITEBYTECODE=1 GRPC_VERBOSITY=ERROR
USER 65532:65532
WORKDIR /data
VOLUME ["/data"]
EXPOSE 7420 7421 7422
# The port of the metrics is opened when the journal was replayed, which may take a quarter of an hour, as on Kubernetes. It speaks TLS or not, and
# asks for a token or not: so only whether it is open.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15m CMD ["python3.11", "-c", "import socket; socket.create_connection(('127.0.0.1', 7421), 3)"]
ENTRYPOINT ["lowwater"]
CMD ["serve", "--data", "/data", "--listen", "0.0.0.0:7420"]
