"""The Django project as an application for ``duly``: ``DJANGO_SETTINGS_MODULE=shop.settings duly worker duly.integrations.django.project``.

``manage.py duly worker`` is the same. Importing this sets Django up.
"""

from __future__ import annotations

import django

django.setup()

from duly.integrations.django.application import application  # noqa: E402

app = application()
