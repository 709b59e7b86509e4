-- The control document, unless the one that the caller knows is still in force.
--
-- KEYS[1]  hash: stamp (which of all versions it is) and document
-- ARGV[1]  the stamp that the caller knows; "" for none
--
-- Replies with the stamp ("" when there is no document), the document (nothing when the stamp is known), and the time of
-- the server in seconds and microseconds.
local stamp = redis.call('HGET', KEYS[1], 'stamp') or ''
local document = ''
if stamp ~= ARGV[1] and stamp ~= '' then
  document = redis.call('HGET', KEYS[1], 'document') or ''
end
local time = redis.call('TIME')
return { stamp, document, time[1], time[2] }
