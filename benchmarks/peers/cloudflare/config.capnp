# One workerd, as `workerd serve` takes it: four kinds of object, their SQLite files in one folder on disk.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "objects", disk = (writable = true)),
  ],
  sockets = [(name = "http", http = (), service = "main")],
);

const worker :Workerd.Worker = (
  modules = [(name = "worker.js", esModule = embed "worker.js")],
  compatibilityDate = "2026-11-01",
  durableObjectNamespaces = [
    (className = "Ingest", uniqueKey = "ingest", enableSql = true),
    (className = "Answer", uniqueKey = "answer", enableSql = true),
    (className = "Timed", uniqueKey = "timed", enableSql = true),
    (className = "Echo", uniqueKey = "echo", enableSql = true),
  ],
  durableObjectStorage = (localDisk = "objects"),
  bindings = [
    (name = "ingest", durableObjectNamespace = "Ingest"),
    (name = "answer", durableObjectNamespace = "Answer"),
    (name = "timed", durableObjectNamespace = "Timed"),
    (name = "echo", durableObjectNamespace = "Echo"),
  ],
);
