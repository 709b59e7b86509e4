-- Read the control document, unless the caller knows it already.
--
-- KEYS[1]  hash: stamp (identifies the version) and document
-- ARGV[1]  the stamp that the caller knows; "" for none
--
-- Replies with the stamp ("" if there is no document), the document ("" if the caller knows the stamp), the time of the
-- server in seconds and microseconds, and its run id ("" if the caller knows the stamp, or may not ask for it).
local stamp = redis.call('HGET', KEYS[1], 'stamp') or ''
local document, run = '', ''
if stamp ~= ARGV[1] then
  if stamp ~= '' then
    document = redis.call('HGET', KEYS[1], 'document') or ''
  end
  local info = redis.pcall('INFO', 'server')
  run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
local time = redis.call('TIME')
return { stamp, document, time[1], time[2], run }
