from django.urls import path

from conversations.dev.views import chat_completions, texts

urlpatterns = [
    path("texts/", texts, name="dev-texts"),
    path("model/v1/chat/completions", chat_completions, name="dev-chat-completions"),
]
