"""Settings of the site, read from the environment (twelve-factor) with defaults for development.

Every variable is listed in docs/settings.md. With nothing else set it runs on SQLite in
``var/``, the in-memory channel layer, the embedded scheduler, the console text provider. Only
``SECRET_KEY`` has no default.
"""

from pathlib import Path
from typing import Any

from environs import Env, validate

BASE_DIR = Path(__file__).resolve().parent.parent

env = Env()
# A file of variables; what the environment itself holds wins. An empty ENV_FILE: read none.
_env_file = env.str("ENV_FILE", default=str(BASE_DIR / ".env"))
if _env_file:
    env.read_env(_env_file, recurse=False)

# Off unless asked for: bin/dev asks for it, and makes a key, in the .env file that it writes.
DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY", validate=validate.Length(min=1))
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"] if DEBUG else [])
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", default=[])

VAR_DIR = Path(env.str("VAR_DIR", default=str(BASE_DIR / "var")))
VAR_DIR.mkdir(parents=True, exist_ok=True)

INSTALLED_APPS = [
    "agentsite.desk.DeskConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "agents",  # before staticfiles, whose runserver knows no WebSockets
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "channels",
    "django_celery_beat",
    "conversations",
    "scheduler",
    *env.list("AGENT_APPS", default=["examples"]),
]

MIDDLEWARE = [
    "agents.observing.requests.middleware",
    "agentsite.health.middleware",
    "agentsite.metrics.middleware",
    "django.middleware.security.SecurityMiddleware",
    "agentsite.static.StaticFiles",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "agentsite.urls"
ASGI_APPLICATION = "agentsite.asgi.application"
WSGI_APPLICATION = "agentsite.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# --- Database -------------------------------------------------------------------------------------

DATABASES = {"default": env.dj_db_url("DATABASE_URL", default=f"sqlite:///{VAR_DIR / 'db.sqlite3'}")}
_database = DATABASES["default"]
if _database["ENGINE"] == "django.db.backends.sqlite3":
    _database["OPTIONS"] = {
        # A deferred transaction that reads first cannot be upgraded while another writes: SQLite then
        # answers "database is locked" at once, whatever the timeout. Immediate transactions wait.
        "transaction_mode": "IMMEDIATE",
        "timeout": 30,  # seconds
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    # In-memory test databases are not shared by threads and processes; turns run in both.
    _database["TEST"] = {"NAME": str(VAR_DIR / "test.sqlite3")}
elif _database["ENGINE"] == "django.db.backends.postgresql":
    _database["CONN_MAX_AGE"] = 0  # the pool keeps the connections; CONN_MAX_AGE under ASGI would leak them
    _database["CONN_HEALTH_CHECKS"] = True
    _database.setdefault("OPTIONS", {})["pool"] = {
        "min_size": 0,
        "max_size": env.int("DATABASE_POOL_SIZE", default=16, validate=validate.Range(min=1)),
        "timeout": 10,  # seconds to wait for a free connection
    }
# Behind PgBouncer (or another pooler) in transaction mode each transaction may have another session: no
# cursors that outlive one, and no prepared statements unless the pooler carries them.
TRANSACTION_POOLER = env.bool("DATABASE_TRANSACTION_POOLER", default=False)
_database["DISABLE_SERVER_SIDE_CURSORS"] = TRANSACTION_POOLER
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Channels, Celery ------------------------------------------------------------------------------

REDIS_URL = env.str("REDIS_URL", default="")
# channels_redis has Redis wait up to 5 s for a message; its client, by default, gives up after as many.
_layer = {"address": REDIS_URL, "socket_timeout": 15, "socket_connect_timeout": 5}  # seconds
CHANNEL_LAYERS: dict[str, dict[str, object]] = {
    "default": {"BACKEND": "agents.sockets.layer.RedisLayer", "CONFIG": {"hosts": [_layer]}}
    if REDIS_URL
    else {"BACKEND": "channels.layers.InMemoryChannelLayer"}
}

CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default=REDIS_URL or "redis://127.0.0.1:6379/0")
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
# A Celery task only hands actors to the process's runtime and waits for a free slot: nothing it does is worth
# keeping, repeating or timing. The lease and the retry rule are in the database; a message that is lost is
# found again by the sweep, so messages are acknowledged when they arrive.
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_TASK_TIME_LIMIT = None
# Threads, not processes: one runtime, one event loop and one set of model clients serve all turns of a worker
# (AGENTS["TURNS"] at once). The few threads only carry messages to it. More processors: more workers.
# WORKER_POOL=prefork works too: each of its processes then has a runtime, and connections, of its own. (The
# command line's --pool prefork does not undo this setting: Celery takes it for the default.)
WORKER_POOL = env.str(
    "WORKER_POOL", default="threads", validate=validate.OneOf(["threads", "prefork", "solo"])
)
CELERY_WORKER_POOL = "scheduler.dispatchers.pool:TaskPool" if WORKER_POOL == "threads" else WORKER_POOL
CELERY_WORKER_CONCURRENCY = env.int("WORKER_THREADS", default=4, validate=validate.Range(min=1))
# A worker takes a message when a thread is free, and holds none in advance. When its slots are full its
# threads wait, and what lies in the queue is other workers'. (Of brokers but Redis it holds one a thread.)
CELERY_WORKER_DISABLE_PREFETCH = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Celery drops the database connection of its thread after each task, or each so many. Only the pruning uses
# one: turns, sweeps and texts have connections of the runtime's own.
CELERY_DB_REUSE_MAX = 100
# A worker waits for its broker as long as it takes, and sweeps by itself meanwhile.
CELERY_WORKER_CONSUMER = "scheduler.dispatchers.consumer:Consumer"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_connect_timeout": 2,  # seconds
    # No answer to a command for so long, and the connection is made anew: a Redis that hangs, or that went
    # away without a word, holds up neither beat nor the end of a worker.
    "socket_timeout": 5,  # seconds
    "socket_keepalive": True,
    "health_check_interval": 5,  # seconds; a worker that hears nothing reconnects after 11
}
# Logging is Django's. A sweep a second would otherwise fill the log with "received" and "succeeded".
CELERY_WORKER_HIJACK_ROOT_LOGGER = False

# --- Agents ----------------------------------------------------------------------------------------

# Each app's conf.py lists its settings with defaults and units; only what the environment decides is here.
AGENTS: dict[str, Any] = {
    "DISPATCHER": env.str("AGENTS_DISPATCHER", default="local", validate=validate.OneOf(["local", "celery"])),
    "START_PAUSED": env.bool("AGENTS_START_PAUSED", default=False),
    "PREPARE_STATEMENTS": env.bool("DATABASE_PREPARE_STATEMENTS", default=not TRANSACTION_POOLER),
    "LOG_CONTENT": env.bool("LOG_CONTENT", default=DEBUG),
    "METRICS": env.bool("METRICS", default=True),
    "METRICS_PORTS": env.str("METRICS_PORTS", default=""),
    "METRICS_HOST": env.str("METRICS_HOST", default="127.0.0.1"),
    "METRICS_TOKEN": env.str("METRICS_TOKEN", default=""),
    # Texts. Both names of the public keys count: several keys while Telnyx rotates them.
    "TELNYX_PUBLIC_KEYS": env.list("TELNYX_PUBLIC_KEYS", default=[])
    + env.list("TELNYX_PUBLIC_KEY", default=[]),
    "TWILIO_ACCOUNT_SID": env.str("TWILIO_ACCOUNT_SID", default=""),
    # The same for Twilio's tokens; the first one sends.
    "TWILIO_AUTH_TOKENS": env.list("TWILIO_AUTH_TOKEN", default=[])
    + env.list("TWILIO_AUTH_TOKENS", default=[]),
    "TWILIO_BASE_URL": env.str("TWILIO_BASE_URL", default="https://api.twilio.com"),
    "SMS_PROVIDER": env.str("SMS_PROVIDER", default=""),
    "SMS_NUMBERS": env.json("SMS_NUMBERS", default={}),
    "SMS_KIND": env.str("SMS_KIND", default=""),
    "SMS_QUIET_HOURS": env.json("SMS_QUIET_HOURS", default=None),
    "SMS_MEDIA_HOSTS": env.list("SMS_MEDIA_HOSTS", default=[]),
    "WEBHOOK_BASE_URL": env.str("WEBHOOK_BASE_URL", default=""),
    "CONSENT_KEYS": env.list("CONSENT_KEYS", default=[]),
    # What ``self.env`` binds: the clients of models and of Telnyx.
    "TELNYX_API_KEY": env.str("TELNYX_API_KEY", default=""),
    "TELNYX_BASE_URL": env.str("TELNYX_BASE_URL", default="https://api.telnyx.com/v2"),
    "OPENAI_API_KEY": env.str("OPENAI_API_KEY", default=""),
    "OPENAI_BASE_URL": env.str("OPENAI_BASE_URL", default=""),
    "MODEL": env.str("MODEL", default=""),
    "SITE_URL": env.str("SITE_URL", default="http://127.0.0.1:8000"),
}

# --- Internationalisation, static files, security -----------------------------------------------------

LANGUAGE_CODE = "en-us"
TIME_ZONE = env.str("TIME_ZONE", default="UTC")
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
MEDIA_ROOT = VAR_DIR / "media"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "admin:login"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.SessionAuthentication",
        "rest_framework.authentication.TokenAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    # Whose address a request comes from: with 0 the peer's, whatever X-Forwarded-For says.
    "NUM_PROXIES": env.int("NUM_PROXIES", default=0, validate=validate.Range(min=0)),
}
# The OpenAPI document of /api/, and the page that reads it with files of its own (no other host).
SPECTACULAR_SETTINGS = {
    "TITLE": "Agents",
    "DESCRIPTION": "Conversations with durable agents. docs/api.md says how to use it.",
    "VERSION": "1",
    "SCHEMA_PATH_PREFIX": "/api/",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "PREPROCESSING_HOOKS": ["agents.http.schema.only_the_api"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

# What logs leave out, and why: docs/observability.md.
_WORDY = ("anthropic", "asyncio", "django.db.backends", "httpcore", "openai", "telnyx", "websockets")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"context": {"()": "agents.observing.logs.Context"}},
    "formatters": {
        "plain": {
            "()": "agents.observing.logs.Plain",
            "format": "{asctime} {levelname} {name}: {message}{context}",
            "style": "{",
        },
        "json": {"()": "agents.observing.logs.Json"},
    },
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "filters": ["context"],
            "formatter": env.str("LOG_FORMAT", default="plain", validate=validate.OneOf(["plain", "json"])),
        }
    },
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="INFO")},
    "loggers": {
        "django": {},  # without the handler of Django's own, which would say everything twice with DEBUG
        # With LOG_LEVEL=DEBUG these show whole requests and statements, with all that was said in them.
        **({} if AGENTS["LOG_CONTENT"] else {name: {"level": "INFO"} for name in _WORDY}),
        # A line for each request of a model or a provider; Twilio's names whom it is for.
        "httpx": {"level": "WARNING"},
        "httpx2": {"level": "WARNING"},
        "twilio": {"level": "WARNING"},
        # Two lines for each message, and beat sends a sweep every second.
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
    },
}

if not DEBUG:
    SECURE_PROXY_SSL_HEADER = (
        ("HTTP_X_FORWARDED_PROTO", "https") if env.bool("TRUST_PROXY", default=False) else None
    )
    SECURE_SSL_REDIRECT = env.bool("SECURE_SSL_REDIRECT", default=True)
    SECURE_REDIRECT_EXEMPT = [r"^health/", r"^metrics$"]
    SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", default=31_536_000)
    SECURE_HSTS_INCLUDE_SUBDOMAINS = env.bool("SECURE_HSTS_INCLUDE_SUBDOMAINS", default=True)
    SECURE_HSTS_PRELOAD = env.bool("SECURE_HSTS_PRELOAD", default=True)
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
