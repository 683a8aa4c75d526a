-- Whole requests from a file, each once: its length on a line, then itself.
local requests, at = {}, 0
again = 0  -- global: read by done()

function init(args)
  local file = assert(io.open(args[1], "rb"))
  for length in file:lines() do
    requests[#requests + 1] = file:read(tonumber(length))
  end
end

function request()
  at = at + 1
  if at > #requests then
    at, again = 1, again + 1
  end
  return requests[at]
end

local threads = {}

function setup(thread)
  threads[#threads + 1] = thread
end

function done(summary, latency)
  local rounds = 0
  for _, thread in ipairs(threads) do
    rounds = rounds + (thread:get("again") or 0)
  end
  io.write(string.format(
    "RESULT %d %d %.0f %.0f %d %d %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout, rounds))
end
