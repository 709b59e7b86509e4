-- Replace the control document that the caller has changed, if it is still there.
--
-- KEYS[1]  hash: stamp and document
-- KEYS[2]  stream: the history
-- ARGV[1]  the stamp of what was changed; "" for none
-- ARGV[2]  the number of the new version
-- ARGV[3]  when it was written, in milliseconds; "" for now
-- ARGV[4]  the random part of its stamp
-- ARGV[5]  the new document
-- ARGV[6]  how many entries the history keeps
-- ARGV[7+] fields and values of the new entry
--
-- Replies with the new stamp; with "", and writes nothing, if there is another document.
local known = redis.call('HGET', KEYS[1], 'stamp') or ''
if known ~= ARGV[1] then
  -- A client that has lost the reply sends the command again: the document is its own.
  return string.sub(known, -#ARGV[4]) == ARGV[4] and known or ''
end
local written = ARGV[3]
if written == '' then
  local time = redis.call('TIME')
  -- No earlier than what it replaces, although the clock of a new primary may be behind.
  local before = tonumber(string.match(ARGV[1], '^%d+%-(%d+)') or 0)
  written = string.format('%.0f', math.max(time[1] * 1000 + math.floor(time[2] / 1000), before))
end
local stamp = ARGV[2] .. '-' .. written .. '-' .. ARGV[4]
-- The history first: if the user of the server may not write it, nothing is changed.
redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[6], '*', unpack(ARGV, 7))
redis.call('HSET', KEYS[1], 'stamp', stamp, 'document', ARGV[5])
return stamp
