"""Taking an order: the row and its two jobs are there together, or not at all."""

from django.db import transaction

from kiosk.models import Order
from kiosk.tasks import brew, send_receipt


class Declined(Exception):
    """The card was declined."""


def place(item: str, card: str) -> Order:
    with transaction.atomic():
        order = Order.objects.create(item=item)
        brew.enqueue(order.pk)
        send_receipt.enqueue(order.pk)
        if card == "stolen":
            raise Declined(card)  # the order is rolled back, and so are the jobs
    return order
