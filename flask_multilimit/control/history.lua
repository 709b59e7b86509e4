-- The latest changes, the newest first.
--
-- KEYS[1]  stream: the history
-- ARGV[1]  how many to return
return redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[1])
