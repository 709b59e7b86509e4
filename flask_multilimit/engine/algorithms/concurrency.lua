-- Concurrency: a ZSET of slots in progress (log.lua), scored by the microsecond they were taken or renewed at. A release
-- removes a slot; one that is neither released nor renewed expires a window later. Twin of concurrency.py.
--
-- Members are as in sliding_window.lua: the id of the check, and for further units the id and their number. Each charge
-- and each renewal renews the key's TTL: unlike the units of a window, slots may be in use without end.
local UNKNOWN = -2 -- a retry_after that is not known

algorithms.concurrency = {
  evaluate = function(hit, now)
    local entries, used, seen = call('ZCARD', hit.key), 0, -1
    if entries > 0 then -- often nothing is in progress
      used = call('ZCOUNT', hit.key, argument(now - hit.window + 1), horizon)
      seen = entries - used
    end
    local remaining = hit.count - used
    if remaining < 0 then -- the count has been lowered
      remaining = 0
    end
    if hit.cost <= remaining or hit.cost == 0 then
      return remaining, 0, 0, seen
    end
    if hit.cost > hit.count then
      return remaining, NEVER, 0, seen
    end
    return remaining, UNKNOWN, 0, seen
  end,

  charge = function(hit, now, seen, id)
    call('ZADD', hit.key, stamp, id)
    if hit.cost > 1 then
      local entries = {}
      for n = 2, hit.cost do
        entries[#entries + 1] = stamp
        entries[#entries + 1] = id .. n
      end
      call('ZADD', hit.key, unpack(entries))
    end
    if seen > 0 then
      local future = call('ZCOUNT', hit.key, now + AHEAD + 1, '+inf')
      if future > 0 then
        call('ZREMRANGEBYRANK', hit.key, -math.min(future, TRIM + hit.cost), -1)
      end
      -- Counted again, because a slot that is taken again under its id is no longer expired.
      local expired = call('ZCOUNT', hit.key, '-inf', now - hit.window)
      if expired > 0 then
        call('ZREMRANGEBYRANK', hit.key, 0, math.min(expired, TRIM + hit.cost) - 1)
      end
    end
    call('PEXPIRE', hit.key, argument(2 * hit.window / 1000 + grace))
    return hit.window
  end,

  others = function()
    local others = others_of_log()

    local function members(hit, id)
      local found = { id }
      for n = 2, hit.cost do
        found[n] = id .. n
      end
      return found
    end

    -- Takes slots out. Slots are never added.
    others.settle = function(hit, units, until_, now, id)
      if units < hit.cost then
        call('ZREM', hit.key, unpack(members(hit, id), units + 1))
      end
    end

    -- Slots count from now on, even those that were gone, and even beyond the count.
    others.renew = function(hit, now, id)
      local entries = {}
      for _, member in ipairs(members(hit, id)) do
        entries[#entries + 1] = now
        entries[#entries + 1] = member
      end
      call('ZADD', hit.key, unpack(entries))
      call('PEXPIRE', hit.key, 2 * hit.window / 1000 + grace)
    end

    return others
  end,
}
