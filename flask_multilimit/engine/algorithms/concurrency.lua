-- Concurrency: a ZSET of slots in progress, scored by the microsecond they were taken or renewed at. A slot counts at
-- `now` while now - window < score <= now + AHEAD; a release removes it. Twin of concurrency.py.
--
-- Members are as in sliding_window.lua: the id of the check, and for further units the id and their number. Each charge
-- and each renewal renews the key's TTL: unlike the units of a window, slots may be in use without end.
local UNKNOWN = -2 -- a retry_after that nobody can know
local TRIM = 128 -- at most so many expired slots, and so many of the future, are dropped by one charge

local function members(hit, id)
  local found = { id }
  for n = 2, hit.cost do
    found[n] = id .. n
  end
  return found
end

local function keep(hit)
  call('PEXPIRE', hit.key, 2 * hit.window / 1000 + grace)
end

local function drop_future(hit, now, most)
  local future = call('ZCOUNT', hit.key, now + AHEAD + 1, '+inf')
  if future > 0 then
    call('ZREMRANGEBYRANK', hit.key, -math.min(future, most), -1)
  end
  return future
end

algorithms.concurrency = {
  -- Seen: the number of slots in progress.
  evaluate = function(hit, now)
    local used = call('ZCOUNT', hit.key, now - hit.window + 1, now + AHEAD)
    local remaining = hit.count - used
    if remaining < 0 then -- the count has been lowered
      remaining = 0
    end
    if hit.cost <= remaining or hit.cost == 0 then
      return remaining, 0, 0, used
    end
    return remaining, hit.cost > hit.count and NEVER or UNKNOWN, 0, used
  end,

  charge = function(hit, now, used, id)
    if hit.cost == 1 then
      call('ZADD', hit.key, now, id)
    else
      local entries = {}
      for n, member in ipairs(members(hit, id)) do
        entries[2 * n - 1], entries[2 * n] = now, member
      end
      call('ZADD', hit.key, unpack(entries))
    end
    local dead = call('ZCARD', hit.key) - used - hit.cost
    if dead > 0 then
      local most = TRIM + hit.cost
      local expired = dead - drop_future(hit, now, most)
      if expired > 0 then
        call('ZREMRANGEBYRANK', hit.key, 0, math.min(expired, most) - 1)
      end
    end
    keep(hit)
    return hit.window
  end,

  others = function()
    return {
      reset_after = function(hit, now, used)
        if used == 0 then
          return 0
        end
        local last = call('ZCOUNT', hit.key, '-inf', now - hit.window) + used - 1
        return call('ZRANGE', hit.key, last, last, 'WITHSCORES')[2] + hit.window - now
      end,

      drop_future = function(hit, now)
        drop_future(hit, now, TRIM)
      end,

      refund = function(hit, until_, now, id)
        call('ZREM', hit.key, unpack(members(hit, id)))
      end,

      recognise = function(hit, now, id)
        local at = call('ZSCORE', hit.key, id)
        return at and tonumber(at) > now - hit.window
      end,

      -- Only slots that are still there: a slot that was released meanwhile stays released.
      renew = function(hit, now, id)
        local at = call('ZSCORE', hit.key, id)
        if at and tonumber(at) > now - hit.window then
          for _, member in ipairs(members(hit, id)) do
            call('ZADD', hit.key, 'XX', now, member)
          end
          keep(hit)
        end
      end,
    }
  end,
}
