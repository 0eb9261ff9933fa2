"""What the kiosk keeps."""

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=40)
    brewed = models.BooleanField(default=False)
    receipt = models.CharField(max_length=80, blank=True)

    def __str__(self) -> str:
        return f"{self.item}{', brewed' if self.brewed else ''}{f', {self.receipt}' if self.receipt else ''}"
