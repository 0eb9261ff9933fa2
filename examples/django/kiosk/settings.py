"""What Django has to know of the kiosk, and what of that is Duly's."""

import os

SECRET_KEY = os.environ.get("KIOSK_SECRET_KEY", "for this example only")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "kiosk.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

if "PGDATABASE" in os.environ:  # PGHOST, PGUSER and the like say the rest
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}}
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("KIOSK_FILE", "kiosk.db"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},  # a worker writes to the same file
        }
    }

INSTALLED_APPS = ["duly.integrations.django", "kiosk"]
DULY = {"MAX_ATTEMPTS": 3}
TASKS = {"default": {"BACKEND": "duly.integrations.django.backend.DulyBackend", "QUEUES": ["default", "mail"]}}
