"""What happens after an order: one task as Duly defines them, and one as Django does. Both are jobs, and both run on the same worker."""

from duly.integrations.django import app
from kiosk.models import Order

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@app.task
def brew(order: int) -> None:
    Order.objects.filter(pk=order).update(brewed=True)


@task(queue_name="mail")
def send_receipt(order: int) -> str:
    number = f"receipt R{order:04}"
    Order.objects.filter(pk=order).update(receipt=number)
    return number
