"""What can go wrong, as types. Each class has a stable ``code``; its docstring says what to do.

AgentsError
├── CodecError                a value that cannot be stored
├── LimitError                a documented limit was passed
│   └── InboxFullError
├── AddressError              an address that names nothing
│   ├── UnknownKindError
│   ├── InvalidKindError
│   ├── InvalidNameError
│   └── NoActorError
├── ActorMethodError          a method that may not or did not run
│   ├── ActorUnknownMethodError
│   ├── ActorPrivateMethodError
│   ├── ActorMethodTimeoutError
│   ├── ActorStoppedError
│   └── RuntimeShutdownError
├── ActorBusyError            the caller's patience ended
├── ActorDeadlockError        a chain of calls came back, or a cycle of waits
├── ActorPausedError          the actor, its kind or everything is paused
│   └── ActorTakenOverError   an operator answers in its place
├── ActorNotTakenOverError    an operator's word in a conversation that is its agent's
├── DatabaseUnavailableError  the database did not answer for as long as is worth waiting
├── TurnError
│   ├── TurnLostError         the lease or the fence moved: nothing was written
│   ├── OutcomeUnknownError   the database could not say whether the commit happened
│   ├── TurnEndedError        a write after the turn's end
│   ├── ReadOnlyTurnError     a write in a ``@reads`` method
│   └── StepWriteError        a write inside a step
├── OpenTransactionError      a call from inside an open transaction
├── ScheduleError             a schedule that can never be kept
├── TaskError                 an operator's verb that a task cannot follow now
│   ├── TaskRunningError
│   └── TaskGoneError
├── StatePathError            a condition on a state that is none
├── ExportError               the actor is not there, or a file of it changed meanwhile
├── ImportRefusedError        no whole export of an actor, or one that is here already
├── ForkError                 no turn that a copy could be run on from
├── SandboxError              a copy calls another actor
├── PastUnknownError          a state of long ago, whose turns' records are gone
├── MessageError              a message that the log cannot hold
├── BlobError                 a key, a content type or data that make no file
├── BlobNotFoundError         the actor has no file under this key
├── SqlError                  a statement that SQLite refused
│   ├── SqlConstraintError    UNIQUE, NOT NULL, CHECK, FOREIGN KEY ...
│   ├── SqlForbiddenError     ATTACH, a pragma, a write in ``query_readonly`` ...
│   ├── SqlTransactionError   a transaction by hand, or one that is over
│   ├── SqlTimeoutError       a statement ran too long
│   ├── SqlValueError         a value, or a number of them, that cannot be bound
│   ├── SqlRowsError          ``one()`` of no row, or of several
│   ├── SqlLimitError         (also a LimitError) a database, a value or a result is too large
│   └── SqlCorruptError       the pages are no database
├── StorageError              a key or a range that the key-value store does not take
├── SocketError               a socket's client asks for what it cannot have
│   ├── FrameError            what came is no frame of the protocol
│   │   ├── FrameVersionError
│   │   ├── UnknownFrameError
│   │   └── FrameTooLargeError
│   ├── TooManyFramesError    more frames wait for their turn than may
│   └── TokenError            a token that admits nobody here
├── RequestError              an HTTP request asks for what it cannot have
│   └── BadResponseError      what ``on_request`` returned is no response
├── ClientError               what a client's call, say or stop failed with
├── SynchronousCallError      ``.sync`` on an event loop
└── ConfigurationError        a setting is missing, or contradicts another
Retry, GiveUp                 not failures of ours: what a task says about its next attempt
"""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar


class AgentsError(Exception):
    """Something about an actor went wrong."""

    code: ClassVar[str] = "agents_error"

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        super().__init__(message or (self.__doc__ or "").splitlines()[0])
        for name, value in facts.items():
            setattr(self, name, value)


class CodecError(AgentsError, TypeError):
    """A value cannot be stored. ``path`` says where in the value, such as ``$.items[2].price``."""

    code = "codec_error"
    path: str = "$"


class LimitError(AgentsError):
    """A limit was passed. ``limit`` names the setting, ``maximum`` its value, ``actual`` what was given."""

    code = "limit_exceeded"
    limit: str = ""
    maximum: int = 0
    actual: int = 0


class InboxFullError(LimitError):
    """The actor's inbox holds as many tasks as it may: try again when it has drained."""

    code = "inbox_full"


class AddressError(AgentsError):
    """An address names no actor."""

    code = "bad_address"


class UnknownKindError(AddressError):
    """No installed app declares an Agent class of this kind."""

    code = "unknown_kind"


class InvalidKindError(AddressError, ValueError):
    """A kind is lower-case letters and digits with - or _ between, up to 64 characters."""

    code = "invalid_kind"


class InvalidNameError(AddressError, ValueError):
    """A name is any non-empty text of up to 255 characters."""

    code = "invalid_name"


class NoActorError(AddressError):
    """Nothing was ever written to an actor of this name."""

    code = "no_actor"


class ActorMethodError(AgentsError):
    """A method may not be called, or did not end by returning."""

    code = "method_error"


class ActorUnknownMethodError(ActorMethodError):
    """The class has no such method."""

    code = "unknown_method"


class ActorPrivateMethodError(ActorMethodError):
    """The method is not callable from where the call came from."""

    code = "private_method"


class ActorMethodTimeoutError(ActorMethodError, TimeoutError):
    """The method ran past its budget. Nothing that it wrote was committed."""

    code = "method_timeout"


class ActorStoppedError(ActorMethodError):
    """Somebody asked for this turn to stop. Nothing that it wrote was committed."""

    code = "stopped"


class RuntimeShutdownError(ActorMethodError):
    """The process is shutting down: call again, another one answers."""

    code = "shutting_down"


class ActorBusyError(AgentsError, TimeoutError):
    """Another turn held the actor for as long as the caller was willing to wait."""

    code = "busy"


class ActorDeadlockError(AgentsError):
    """The call would wait for itself: its chain of calls, or a cycle of waiting turns, comes back."""

    code = "deadlock"


class ActorPausedError(AgentsError):
    """The actor, its kind or everything is paused: none of its turns begins. Reads still answer.

    ``hold`` says which it is: actor, kind, everything; or taken, where an operator has taken it over.
    """

    code = "paused"
    hold: str = "actor"


class ActorTakenOverError(ActorPausedError):
    """An operator has taken the conversation over: its agent goes on when they release it."""

    code = "taken_over"


class ActorNotTakenOverError(AgentsError):
    """Take the conversation over first: only then an operator answers in it, or releases it."""

    code = "not_taken_over"


class DatabaseUnavailableError(AgentsError):
    """The database did not answer for as long as is worth waiting. Nothing was done: try again later."""

    code = "database_unavailable"


class TurnError(AgentsError):
    """A turn cannot do this, or not any more."""

    code = "turn_error"
    turn_id: Any = None


class TurnLostError(TurnError):
    """Somebody else holds the actor now: this turn committed nothing. A task runs again by itself."""

    code = "turn_lost"


class OutcomeUnknownError(TurnError):
    """The connection died around the commit and its outcome could not be looked up: it may have happened."""

    code = "outcome_unknown"


class TurnEndedError(TurnError):
    """The turn is over: keep no reference to an agent beyond its turn."""

    code = "turn_ended"


class ReadOnlyTurnError(TurnError):
    """A method marked ``@reads`` tried to write."""

    code = "read_only"


class StepWriteError(TurnError):
    """A step tried to write through its agent. Return the result and write after the step."""

    code = "write_in_step"


class OpenTransactionError(AgentsError):
    """A call to an actor from inside an open transaction could never be undone with it: use ``tell``."""

    code = "open_transaction"


class ScheduleError(AgentsError, ValueError):
    """A schedule that can never be kept: an interval that is not positive, a cron that never matches."""

    code = "bad_schedule"


class StatePathError(AgentsError):
    """This is no condition on a state: write it as $.status = "open"."""

    code = "bad_state_path"


class ExportError(AgentsError):
    """The actor cannot be exported: it is not there, or a file of it was replaced meanwhile."""

    code = "export_failed"


class ImportRefusedError(AgentsError, ValueError):
    """The file is no whole export of an actor, or what it holds is here already. Nothing was written."""

    code = "import_refused"


class ForkError(AgentsError):
    """A conversation cannot be run on from there: no such turn, or nothing that could be run again."""

    code = "fork_failed"


class SandboxError(AgentsError):
    """A copy to try things on calls no other actor: that one is real."""

    code = "sandbox"


class PastUnknownError(AgentsError):
    """The state of then can't be told: the records of the turns since then are not kept any more."""

    code = "past_unknown"


class MessageError(AgentsError, ValueError):
    """A message has a role, a field or a tool call that the log cannot hold."""

    code = "bad_message"


class TaskError(AgentsError):
    """The task's state does not allow this: a parked one is replayed, a pending one runs by itself."""

    code = "task_state"


class TaskRunningError(TaskError):
    """The task is running now: stop its turn, or wait until its attempt has ended."""

    code = "task_running"


class TaskGoneError(TaskError):
    """The task is not there any more: it was done, replaced or cancelled. Its attempts can be replayed."""

    code = "task_gone"


class BlobError(AgentsError, ValueError):
    """A file has a key of 1 to 255 characters, a content type, and bytes."""

    code = "bad_blob"


class BlobNotFoundError(AgentsError, KeyError):
    """The actor has no file under this key. ``key`` says which."""

    code = "blob_not_found"
    key: str = ""

    __str__ = Exception.__str__  # KeyError's would quote the message


class SqlError(AgentsError):
    """SQLite refused a statement: its message says why. What the statement did was undone."""

    code = "sql_error"


class SqlConstraintError(SqlError):
    """A constraint failed. ``constraint`` is its sort: unique, primary_key, not_null, check ..."""

    code = "sql_constraint"
    constraint: str = ""


class SqlForbiddenError(SqlError):
    """The statement reaches out of the database, weakens it, or writes where only reading is allowed."""

    code = "sql_forbidden"


class SqlTransactionError(SqlError):
    """Use ``async with self.sql.transaction()``, not BEGIN; one that is over takes no more statements."""

    code = "sql_transaction"


class SqlTimeoutError(SqlError, TimeoutError):
    """A statement ran past SQL_BUDGET and was undone: give it an index, or less to do."""

    code = "sql_timeout"


class SqlValueError(SqlError, ValueError):
    """A value cannot be bound, or there are more or fewer values than the last statement has marks."""

    code = "sql_value"


class SqlRowsError(SqlError, LookupError):
    """``one()`` needs a result of exactly one row. ``rows`` says how many there were."""

    code = "sql_rows"
    rows: int = 0


class SqlLimitError(SqlError, LimitError):
    """The database, a value, a result or what a turn changed is too large. ``limit`` names the setting."""

    code = "sql_limit"


class SqlCorruptError(SqlError):
    """The pages in the database make no SQLite database: restore the actor from a backup or an export."""

    code = "sql_corrupt"


class StorageError(AgentsError, ValueError):
    """A key has 1 to 512 characters and no reserved prefix; a listing has a limit of 1 to 1,000."""

    code = "bad_storage"


class SocketError(AgentsError):
    """A socket's client asks for something that it cannot have."""

    code = "socket_error"


class FrameError(SocketError, ValueError):
    """What came is no frame of the protocol. ``id`` is the frame's own, where it could be read."""

    code = "bad_frame"
    id: str | None = None


class FrameVersionError(FrameError):
    """A frame says ``"v": 1``: this server speaks that version of the protocol alone."""

    code = "version_mismatch"


class UnknownFrameError(FrameError):
    """The protocol has no frame of this kind: docs/protocol.md lists them."""

    code = "unknown_frame"


class FrameTooLargeError(FrameError):
    """A frame is larger than the server takes. The socket closes with 1009."""

    code = "frame_too_large"


class TooManyFramesError(SocketError):
    """More frames wait for their turn than the server keeps. The socket closes with 1013: back off."""

    code = "too_many_frames"


class TokenError(SocketError):
    """The token is expired, not one of this site's, or for another actor: ask for a fresh one."""

    code = "bad_token"


class RequestError(AgentsError, ValueError):
    """A parameter, a header or the body of a request is not what the API takes. ``field`` says which."""

    code = "bad_request"
    field: str = ""


class BadResponseError(RequestError):
    """``on_request`` returns None, text, bytes, JSON, or a response of Django's that is not streamed."""

    code = "bad_response"


class ClientError(AgentsError):
    """A client of the sockets did not get what it asked for; ``code`` is the server's, or the client's own.

    The client's own: ``timeout``, ``offline``, ``connection_lost`` (nobody knows whether it was done),
    ``too_large``, ``closed``, ``bad_url``, and once the server has refused for good ``denied``,
    ``not_found``, ``unauthorized``. ``turn_id`` is the turn that failed, where the server says so.
    """

    code = "client_error"
    turn_id: str | None = None

    def __init__(self, code: str, message: str | None = None, *, turn_id: str | None = None) -> None:
        super().__init__(message or code, turn_id=turn_id)
        self.code = code  # type: ignore[misc]  # one class for all of the server's codes


class SynchronousCallError(AgentsError, RuntimeError):
    """``.sync`` would block an event loop: await the stub itself."""

    code = "sync_on_event_loop"


class ConfigurationError(AgentsError):
    """A setting is missing, or contradicts another. ``setting`` names it."""

    code = "not_configured"
    setting: str = ""


class Retry(Exception):  # noqa: N818 - says what should happen next; not an error of ours
    """Raised by a task: this attempt failed, try again after ``after`` seconds (or a ``timedelta``).

    Counts as an attempt. Without ``after`` the usual backoff decides.
    """

    def __init__(self, message: str = "", *, after: float | dt.timedelta | None = None) -> None:
        super().__init__(message or "retry")
        self.after = after.total_seconds() if isinstance(after, dt.timedelta) else after


class GiveUp(Exception):  # noqa: N818
    """Raised by a task: trying again cannot help, park it now."""
