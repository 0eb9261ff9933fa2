"""`manage.py orders`: what was ordered, and what is waiting for it."""

from django.core.management.base import BaseCommand

from duly.integrations.django import app
from kiosk.models import Order


class Command(BaseCommand):
    help = "List the orders and the jobs that wait."

    def handle(self, *args, **options):
        for order in Order.objects.order_by("pk"):
            self.stdout.write(f"Order {order.pk}: {order}")
        waiting = app.jobs.count(status="queued")
        self.stdout.write(f"{waiting} jobs wait." if waiting else "No job waits.")
