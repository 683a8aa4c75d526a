"""HTTP to actors: the ground of the REST API, and agents that answer requests themselves.

``views.py`` is what all views stand on: asynchronous, so that one which waits holds neither a thread nor a
connection to the database; synchronous parts run in a few threads of the process's own (``work.py``).
``admission.py`` asks the class's ``authorize``, as sockets do. ``actors.py`` are the views that need nothing
but the runtime; those of messages are in ``conversations/api``, those of tasks in ``scheduler/api``.
"""
