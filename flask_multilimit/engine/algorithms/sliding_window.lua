-- Sliding window log: a ZSET of check ids scored by the microsecond they were charged at.
-- A unit charged at s counts at `now` while now - window < s <= now + AHEAD. Twin of sliding_window.py.
--
-- The key's TTL is two windows, renewed when the key is new or an entry had expired. Between two renewals no
-- charge is later than one window after the first, so each of them outlives its own window. A settlement renews it,
-- too, because it may take out the entry that would have expired.
--
-- The member of a check's first unit is its id; the others add their number to it, and are written in chunks of 2000,
-- because Lua's stack holds only about 8000 arguments of a command.
--
-- A short ZSET is a list, in which the server counts entry by entry. If it has more than a few entries, the script counts
-- those outside of the window instead: nearly always there are none, as the ends of the list show at once.
local FEW = 24 -- up to here, counting all entries is as fast as seeing that none is outside of the window
local LONGEST_LIST = 128 -- entries; in longer ZSETs the server has an index (zset-max-listpack-entries)

algorithms.sliding_window = {
  -- Seen: the number of entries outside of the window (expired, future); -1 if there is no key.
  evaluate = function(hit, now)
    local total = call('ZCARD', hit.key)
    local outside, seen = 0, -1
    if total > FEW and total <= LONGEST_LIST then
      outside = call('ZCOUNT', hit.key, '-inf', argument(now - hit.window)) + call('ZCOUNT', hit.key, beyond, '+inf')
      seen = outside
    elseif total > 0 then
      outside = total - call('ZCOUNT', hit.key, argument(now - hit.window + 1), horizon)
      seen = outside
    end
    local used = total - outside
    local remaining = hit.count - used
    if hit.cost <= remaining or hit.cost == 0 then
      return remaining, 0, 0, seen
    end
    if hit.cost > hit.count then
      return remaining, NEVER, 0, seen
    end
    local last_to_leave = used + hit.cost - hit.count - 1
    if outside > 0 then
      last_to_leave = last_to_leave + call('ZCOUNT', hit.key, '-inf', now - hit.window)
    end
    local leaves_from = call('ZRANGE', hit.key, last_to_leave, last_to_leave, 'WITHSCORES')[2]
    return remaining, leaves_from + hit.window - now, 0, seen
  end,

  charge = function(hit, now, seen, id)
    call('ZADD', hit.key, stamp, id)
    for from = 2, hit.cost, 2000 do
      local entries = {}
      for n = from, math.min(from + 1999, hit.cost) do
        entries[#entries + 1] = stamp
        entries[#entries + 1] = id .. n
      end
      call('ZADD', hit.key, unpack(entries))
    end
    if seen > TRIM + hit.cost then
      local future = call('ZCOUNT', hit.key, now + AHEAD + 1, '+inf')
      if future > 0 then
        call('ZREMRANGEBYRANK', hit.key, -math.min(future, TRIM + hit.cost), -1)
      end
      -- Counted again, because a check that is charged again under its id renews its expired entries.
      local expired = call('ZCOUNT', hit.key, '-inf', now - hit.window)
      if expired > 0 then
        call('ZREMRANGEBYRANK', hit.key, 0, math.min(expired, TRIM + hit.cost) - 1)
      end
    elseif seen > 0 and call('ZREMRANGEBYSCORE', hit.key, '-inf', now - hit.window) < seen then
      call('ZREMRANGEBYSCORE', hit.key, now + AHEAD + 1, '+inf')
    end
    if seen ~= 0 then
      call('PEXPIRE', hit.key, 2 * hit.window / 1000 + grace)
    end
    return hit.window
  end,

  others = function()
    local others = others_of_log()

    -- By their members, units are given back and charged once, however often this runs. Those of an earlier charge
    -- under this id that no longer count are charged again.
    others.settle = function(hit, units, until_, now, id)
      local more, at, how = units > hit.cost, string.format(whole, now), 'NX'
      local before = more and call('ZSCORE', hit.key, hit.cost == 0 and id or id .. hit.cost + 1)
      if before and tonumber(before) <= now - hit.window then
        how = 'CH'
      end
      local lives = 2 * hit.window / 1000 + grace
      if not more then -- while the key exists: a script cannot access a missing one in a hash slot that is moving
        call('PEXPIRE', hit.key, lives)
      end
      for from = math.min(units, hit.cost) + 1, math.max(units, hit.cost), 2000 do
        local members = {}
        for n = from, math.min(from + 1999, math.max(units, hit.cost)) do
          if more then
            members[#members + 1] = at
          end
          members[#members + 1] = n == 1 and id or id .. n
        end
        if more then
          call('ZADD', hit.key, how, unpack(members))
        else
          call('ZREM', hit.key, unpack(members))
        end
      end
      if more then
        call('PEXPIRE', hit.key, lives)
      end
    end

    return others
  end,
}
