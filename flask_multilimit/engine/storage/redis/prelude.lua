-- Stands at the beginning of every script: what drivers and algorithms share.
--
-- ARGV[4]  now in microseconds for a test that rules time; "" or nothing in production: the server's own clock
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

-- Instants as text: the server would write out a number anew for each command that it stands in.
-- '%d' takes half as long as '%.0f', but is wrong on a server of 32 bits.
local whole = '%d'
local horizon = string.format(whole, now + AHEAD) -- the latest instant that counts
if #horizon ~= 16 then
  whole = '%.0f'
  horizon = string.format(whole, now + AHEAD)
end
local beyond = '(' .. horizon -- the bound of what lies after that

-- A number for a command: as text, where the server (before 7.2) takes longer to write it out than Lua does.
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

local stamp -- now; known when there is something to charge
