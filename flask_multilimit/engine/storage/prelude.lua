-- Stands before the algorithms in every script: what they share, and the table they enter themselves in.
local call = redis.call
local algorithms = {}
local NEVER = -1 -- a retry_after that no waiting can reach

local given_clock = ARGV[2]

local function read_clock()
  if given_clock ~= '' then
    return tonumber(given_clock)
  end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The server lets keys die by its own clock; under a given one they stay an hour longer.
local function time_to_live(microseconds)
  local grace = given_clock == '' and 0 or 3600000
  return math.ceil(microseconds / 1000) + grace
end

-- One after the other in ARGV[3]: window, count, cost, burst, max_delay, shadow as doubles, and the name of the
-- algorithm.
local function read_hits()
  local hits, packed, position = {}, ARGV[3], 1
  for i = 1, #KEYS do
    local window, count, cost, burst, max_delay, shadow, name
    window, count, cost, burst, max_delay, shadow, name, position = struct.unpack('<dddddds', packed, position)
    hits[i] = {
      key = KEYS[i],
      window = window,
      count = count,
      cost = cost,
      burst = burst,
      max_delay = max_delay,
      shadow = shadow == 1,
      algorithm = algorithms[name],
    }
  end
  return hits
end
