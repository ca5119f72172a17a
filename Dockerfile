# One image for every role; the command says which: `callkeeper worker`, `scheduler`, `migrate`.
FROM python:3.11-slim AS build
WORKDIR /source
RUN python -m venv /app
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements.lock ./
# The lock pins the build tool as well, so the image is made from nothing else.
RUN /app/bin/pip install --constraint requirements.lock setuptools
COPY . .
RUN /app/bin/pip install --constraint requirements.lock --no-build-isolation ".[web]" \
 && /app/bin/pip uninstall --yes setuptools pip

FROM python:3.11-slim
RUN useradd --system --user-group --no-create-home --uid 10001 callkeeper \
 && install --directory --owner callkeeper --group callkeeper /media/callkeeper
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1 CALLKEEPER_MEDIA_URL=/media/callkeeper
VOLUME /media/callkeeper
USER callkeeper
WORKDIR /app
ENTRYPOINT ["callkeeper"]
CMD ["--help"]
