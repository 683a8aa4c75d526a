from django.http import HttpRequest, HttpResponse
from django.urls import path

from benchmarks.baseline.views import TextView


def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [path("texts/<str:kind>/", TextView.as_view()), path("health/", health)]
