-- What sliding_window.lua and concurrency.lua share: a ZSET of entries that are scored by a microsecond s, and count at
-- `now` while now - window < s <= now + AHEAD. This is what few checks need, made when it is (prelude.lua).
local LOG_TRIM = 128 -- at most so many entries of the future are dropped by one check that is refused

local function others_of_log()
  return {
    reset_after = function(hit, now, used)
      if used == 0 then
        return 0
      end
      local last = call('ZCOUNT', hit.key, '-inf', now - hit.window) + used - 1
      return call('ZRANGE', hit.key, last, last, 'WITHSCORES')[2] + hit.window - now
    end,

    drop_future = function(hit, now)
      local future = call('ZCOUNT', hit.key, now + AHEAD + 1, '+inf')
      if future > 0 then
        call('ZREMRANGEBYRANK', hit.key, -math.min(future, LOG_TRIM), -1)
      end
    end,

    -- For as long as the charge counts.
    recognise = function(hit, now, id)
      local at = call('ZSCORE', hit.key, id)
      return at and tonumber(at) > now - hit.window
    end,
  }
end
