-- Add amounts by name under keys that expire, once for each number that a source sends.
--
-- KEYS[1]    the source: the number it sent last
-- KEYS[1+i]  tally i: a ZSET of names, scored by amount
-- ARGV[1]    the number
-- ARGV[2]    seconds for which it is remembered
-- ARGV[3..]  for each tally: seconds it lives, most names, "instants" or "", the number of amounts that follow, and for
--            each of these its name and the amount. Instants, in POSIX milliseconds, replace those that are there, and
--            live that long after themselves.
-- Result     the server's clock: seconds, microseconds
local call = redis.call
local time = call('TIME')
local last = call('GET', KEYS[1])
if last and tonumber(last) >= tonumber(ARGV[1]) then
  return { tonumber(time[1]), tonumber(time[2]) }
end
local position = 3
for i = 2, #KEYS do
  local key, seconds, most, instants = KEYS[i], ARGV[position], tonumber(ARGV[position + 1]), ARGV[position + 2] ~= ''
  local names = tonumber(ARGV[position + 3])
  position = position + 4
  for _ = 1, names do
    if instants then
      call('ZADD', key, ARGV[position + 1], ARGV[position])
    else
      call('ZADD', key, 'INCR', ARGV[position + 1], ARGV[position])
    end
    position = position + 2
  end
  local lives = seconds * 1000
  if instants then
    local at = time[1] * 1000 + math.floor(time[2] / 1000)
    call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', at - lives))
    lives = lives + (tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) or at) - at
  end
  call('ZREMRANGEBYRANK', key, 0, -most - 1)
  call('PEXPIRE', key, string.format('%.0f', lives))
end
call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return { tonumber(time[1]), tonumber(time[2]) }
