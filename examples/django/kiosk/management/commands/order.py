"""`manage.py order tea`, `manage.py order coffee --card stolen`."""

from django.core.management.base import BaseCommand, CommandError

from kiosk.orders import Declined, place


class Command(BaseCommand):
    help = "Order something."

    def add_arguments(self, parser):
        parser.add_argument("item")
        parser.add_argument("--card", default="good")

    def handle(self, *args, item, card, **options):
        try:
            order = place(item, card)
        except Declined:
            raise CommandError("The card was declined.") from None
        self.stdout.write(f"Order {order.pk}: {order}")
