-- Read the control document, unless the caller knows it already.
--
-- KEYS[1]  hash: stamp (identifies the version) and document
-- ARGV[1]  the stamp that the caller knows; "" for none
--
-- Replies with the stamp ("" if there is no document), the document ("" if the caller knows the stamp), and the time of
-- the server in seconds and microseconds.
local stamp = redis.call('HGET', KEYS[1], 'stamp') or ''
local document = ''
if stamp ~= ARGV[1] and stamp ~= '' then
  document = redis.call('HGET', KEYS[1], 'document') or ''
end
local time = redis.call('TIME')
return { stamp, document, time[1], time[2] }
