"""`POST /orders` with `item` and `card`."""

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_POST

from kiosk.orders import Declined, place


@require_POST
def order(request: HttpRequest) -> HttpResponse:
    try:
        made = place(request.POST["item"], request.POST["card"])
    except Declined:
        return HttpResponse("The card was declined.\n", status=402)
    return HttpResponse(f"Order {made.pk}: {made}\n", status=201)


urlpatterns = [path("orders", order)]
