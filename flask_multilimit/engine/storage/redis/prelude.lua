-- Stands before the algorithms in every script: what they share, and the table they enter themselves in.
--
-- ARGV[1]  the hits packed: window, count, cost, burst, max_delay, shadow as doubles, and the algorithm's name; of each
-- ARGV[2]  id of the check, 16 bytes
-- ARGV[4]  now in microseconds for a test that rules time; "" or nothing in earnest: the server's own clock
--
-- The server makes every function and table of a script anew at each run, which takes longer than to use it. So what
-- a run does once stands in the open, and what few runs need is made by them: by the function `others` of an algorithm.
local call = redis.call
local algorithms = {}
local NEVER = -1 -- a retry_after that no waiting can reach
local AHEAD = 100000 -- microseconds: what lies no further in the future counts (the clock stepped back a little)

-- Milliseconds that a key stays beyond its time: the server lets it die by its own clock, not by a given one.
local grace = 3600000
local now = tonumber(ARGV[4])
if not now then
  local time = call('TIME')
  grace, now = 0, time[1] * 1000000 + time[2]
end

local hits, position = {}, 1
for i = 1, #KEYS do
  local window, count, cost, burst, max_delay, shadow, algorithm
  window, count, cost, burst, max_delay, shadow, algorithm, position = struct.unpack('<dddddds', ARGV[1], position)
  hits[i] = {
    key = KEYS[i],
    window = window,
    count = count,
    cost = cost,
    burst = burst,
    max_delay = max_delay,
    shadow = shadow == 1,
    algorithm = algorithm,
  }
end
