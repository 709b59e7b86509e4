-- List the workers that follow the control document, and announce one of them.
--
-- KEYS[1]  sorted set: what each worker announced last, by the time in seconds
-- KEYS[2]  hash: the control document and its stamp
-- ARGV[1]  how many seconds an announcement is kept
-- ARGV[2]  what the worker announced before; "" for nothing
-- ARGV[3]  what it announces now; "" only lists
--
-- Replies with the time of the server in seconds and the stamp of the document, then each announcement and its time.
local time = redis.call('TIME')
local now, kept = tonumber(time[1]), tonumber(ARGV[1])
if ARGV[3] ~= '' then
  redis.call('ZREM', KEYS[1], ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - kept)
  redis.call('ZADD', KEYS[1], now, ARGV[3])
  redis.call('PEXPIRE', KEYS[1], kept * 1000)
end
local reply = { time[1], redis.call('HGET', KEYS[2], 'stamp') or '' }
for _, each in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')) do
  reply[#reply + 1] = each
end
return reply
