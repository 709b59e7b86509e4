-- Read the tallies under some keys.
--
-- KEYS[i]  tally i: a ZSET of names, scored by amount
-- Result   the server's clock: seconds, microseconds; then a list for each tally: name, amount, name, amount, ...
local time = redis.call('TIME')
local result = { tonumber(time[1]), tonumber(time[2]) }
for i, key in ipairs(KEYS) do
  result[2 + i] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
end
return result
