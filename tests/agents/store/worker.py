"""What another process does to the same database: ``python -m tests.agents.store.worker COMMAND JSON``.

Prints one line of JSON with what came of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def start(command: str, **options: Any) -> subprocess.Popen[str]:
    """Starts a worker on this process's test database."""
    from django.db import connection

    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        url = f"sqlite:///{settings['NAME']}"
    else:
        password = f":{settings['PASSWORD']}" if settings["PASSWORD"] else ""
        url = (
            f"postgres://{settings['USER']}{password}@{settings['HOST']}:{settings['PORT'] or 5432}"
            f"/{settings['NAME']}"
        )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.agents.store.worker", command, json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ready(worker: subprocess.Popen[str]) -> None:
    """Waits until the worker could begin."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if line != "ready\n":
        raise AssertionError(f"the worker said {line!r}: {worker.communicate()[1]}")


def go(*workers: subprocess.Popen[str]) -> list[Any]:
    """Lets workers begin together; what they say when they are done."""
    for worker in workers:
        ready(worker)
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    said = []
    for worker in workers:
        out, err = worker.communicate(timeout=100)
        assert worker.returncode == 0, err
        said.append(json.loads(out))
    return said


def cross_tells(actors: list[int], rounds: int) -> Any:
    """Turns of the first actor that tell all the others, in the order that was asked for."""
    from agents.store import get_store
    from tests.agents.store.stage import Stage

    stage = Stage(get_store())
    own, *others = actors
    tells = [stage.address(id) for id in others]
    errors = []
    for _ in range(rounds):
        claimed = stage.claim(own)
        commit = stage.dirty(claimed, tells=[stage.tell_to(*address) for address in tells])
        (result,) = stage.store.commit([commit])
        if isinstance(result, BaseException):
            errors.append(repr(result))
    return {"errors": errors}


def lock_and_tell(actors: list[int], rounds: int) -> Any:
    """Tells from outside to the same actors, named in the order that was asked for."""
    from agents.store import get_store
    from tests.agents.store.stage import Stage

    stage = Stage(get_store())
    addresses = [stage.address(id) for id in actors]
    errors = []
    for _ in range(rounds):
        try:
            stage.store.tell([stage.tell_to(*address) for address in addresses])
        except Exception as error:
            errors.append(repr(error))
    return {"errors": errors}


def count(actor: int, rounds: int) -> Any:
    """Turns that read a number in the state and write the next one."""
    import time

    from agents.store import get_store
    from tests.agents.store.stage import Stage

    stage = Stage(get_store())
    done = 0
    while done < rounds:
        claimed = stage.try_claim(actor)
        if claimed is None:
            time.sleep(0.001)
            continue
        state = {"n": (claimed.actor.state or {"n": 0})["n"] + 1}
        stage.commit(stage.dirty(claimed, state=state, state_changed=True))
        done += 1
    return {"done": done}


def first_messages(name: str, rounds: int) -> Any:
    """Tells new actors something; what their ids are for this process."""
    from agents.store import get_store
    from tests.agents.store.stage import KIND, Stage

    stage = Stage(get_store())
    ids = {}
    for n in range(rounds):
        stage.store.tell([stage.tell_to(KIND, f"{name}-{n}", key=f"{os.getpid()}")])
        ids.update({f"{name}-{n}": stage.store.find([(KIND, f"{name}-{n}")])[KIND, f"{name}-{n}"]})
    return ids


COMMANDS = {f.__name__: f for f in (cross_tells, lock_and_tell, count, first_messages)}


def main() -> None:
    import django

    django.setup()
    command, options = COMMANDS[sys.argv[1]], json.loads(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(command(**options)), flush=True)

    from django.db import connection, connections

    connections.close_all()
    if pool := getattr(connection, "pool", None):
        pool.close()


if __name__ == "__main__":
    main()
