# One image for every process: what it does is its command (see compose.yaml and Procfile).
#
#     docker build -t agents .

FROM python:3.11-slim-bookworm AS packages
WORKDIR /build
COPY pyproject.toml constraints.txt ./
# The project is a site that runs where it lies, not a package: its dependencies are read from pyproject.toml.
RUN python -m venv /venv \
    && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > requirements.txt \
    && /venv/bin/pip install --no-cache-dir --constraint constraints.txt --requirement requirements.txt

FROM python:3.11-slim-bookworm
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ENV_FILE= \
    VAR_DIR=/var/lib/agents
RUN useradd --system --uid 10001 agents && install -d -o agents /var/lib/agents
COPY --from=packages /venv /venv
WORKDIR /site
COPY . .
# Their names carry a hash of their contents, so this belongs to the image. The key signs nothing here.
RUN SECRET_KEY=of-the-build python manage.py collectstatic --noinput \
    && python -m compileall -q agents agentsite conversations scheduler examples
USER agents
VOLUME /var/lib/agents
EXPOSE 8000
# SIGTERM: no new work, running turns and requests get SHUTDOWN_GRACE. Give a container 30 s.
STOPSIGNAL SIGTERM
CMD ["python", "manage.py", "serve", "--host", "0.0.0.0", "--port", "8000"]
