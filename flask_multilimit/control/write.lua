-- Replace the control document that the caller has changed, if it is still there.
--
-- KEYS[1]  hash: stamp and document
-- KEYS[2]  stream: the history
-- ARGV[1]  the stamp of what was changed; "" for none
-- ARGV[2]  the new stamp
-- ARGV[3]  the new document
-- ARGV[4]  how many entries the history keeps
-- ARGV[5+] fields and values of the new entry
--
-- Replies with 1; with 0, and writes nothing, if there is another document.
if (redis.call('HGET', KEYS[1], 'stamp') or '') ~= ARGV[1] then
  return 0
end
-- The history first: if the user of the server may not write it, nothing is changed.
redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[4], '*', unpack(ARGV, 5))
redis.call('HSET', KEYS[1], 'stamp', ARGV[2], 'document', ARGV[3])
return 1
