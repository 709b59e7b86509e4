-- Read the control document, unless the caller knows it already.
--
-- KEYS[1]  hash: stamp (identifies the version) and document
-- ARGV[1]  the stamp that the caller knows; "" for none
--
-- Replies with the stamp ("" if there is no document), the document ("" if the caller knows the stamp), the time of the
-- server in seconds and microseconds, and what identifies its data: its run id, its replication id, which changes when
-- it takes the data of another server, and how many keys it has evicted ("" if the caller may not ask, or neither knows
-- a document).
local function info(section, pattern)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and string.match(text, pattern) or ''
end

local stamp = redis.call('HGET', KEYS[1], 'stamp') or ''
local document, run = '', ''
if stamp ~= ARGV[1] and stamp ~= '' then
  document = redis.call('HGET', KEYS[1], 'document') or ''
end
if stamp ~= '' or ARGV[1] ~= '' then -- otherwise there is nothing to lose
  run = info('server', 'run_id:(%w+)')
    .. info('replication', 'master_replid:(%w+)')
    .. info('stats', 'evicted_keys:[1-9]%d*')
end
local time = redis.call('TIME')
return { stamp, document, time[1], time[2], run }
