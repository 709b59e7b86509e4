-- Stands at the beginning of every script: what drivers and algorithms share.
--
-- ARGV[4]  now in microseconds, for tests that control time; in production "" or nothing: the server's own clock
--
-- The server creates every function and table of a script again at each run, which takes longer than using it. So what
-- a run does once is not in a function, and what few runs need is created only by them: by `others` of an algorithm.
local call = redis.call
local algorithms = {}
local NEVER = -1 -- a retry_after that says that waiting does not help
local AHEAD = 100000 -- microseconds: charges that are no further in the future count (the clock stepped back a little)

-- Milliseconds that a key outlives its window: the server expires it by its own clock, not by that of a test.
local grace = 3600000
local now = tonumber(ARGV[4])
if not now then
  local time = call('TIME')
  grace, now = 0, time[1] * 1000000 + time[2]
end

-- Instants as text: the server would convert a number again for each command that has it.
-- '%d' takes half as long as '%.0f', but is wrong on a server of 32 bits.
local whole = '%d'
local horizon = string.format(whole, now + AHEAD) -- the latest instant that counts
if #horizon ~= 16 then
  whole = '%.0f'
  horizon = string.format(whole, now + AHEAD)
end
local beyond = '(' .. horizon -- everything after that, as a bound of ZCOUNT

-- A number for a command: as text before 7.2, where the server takes longer to convert it than Lua does.
local argument
if (redis.REDIS_VERSION_NUM or 0) >= 0x70200 then
  argument = function(number)
    return number
  end
else
  argument = function(number)
    return string.format(whole, number)
  end
end

local stamp -- now as text, once there is something to charge
