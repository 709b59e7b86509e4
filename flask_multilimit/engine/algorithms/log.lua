-- What sliding_window.lua and concurrency.lua share: a ZSET of entries, each scored by a microsecond s. An entry counts
-- at `now` while now - window < s <= now + AHEAD. Seen: the number of entries that do not count; -1 if there is no key.
local TRIM = 128 -- the most entries of each kind (expired, future) that one check drops, plus one per unit

local function others_of_log()
  return {
    reset_after = function(hit, now, seen)
      if seen < 0 then
        return 0
      end
      local last = -1
      if seen > 0 then
        local used = call('ZCOUNT', hit.key, now - hit.window + 1, horizon)
        if used == 0 then
          return 0
        end
        last = call('ZCOUNT', hit.key, '-inf', now - hit.window) + used - 1
      end
      return call('ZRANGE', hit.key, last, last, 'WITHSCORES')[2] + hit.window - now
    end,

    drop_future = function(hit, now, seen)
      local future = 0
      if seen > 0 then
        future = call('ZCOUNT', hit.key, now + AHEAD + 1, '+inf')
      end
      if future > 0 then
        call('ZREMRANGEBYRANK', hit.key, -math.min(future, TRIM), -1)
      end
    end,

    -- Whether the entry of a check still counts, as its charge does.
    recognise = function(hit, now, id)
      local at = call('ZSCORE', hit.key, id)
      return at and tonumber(at) > now - hit.window
    end,
  }
end
