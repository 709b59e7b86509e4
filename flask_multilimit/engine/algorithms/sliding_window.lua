-- Sliding window log: a ZSET of check ids scored by the microsecond they were charged at.
-- A unit charged at s counts at `now` while now - window < s <= now + AHEAD. Twin of sliding_window.py.
--
-- The key's TTL is two windows, renewed when the key is new or an entry had expired. Between two renewals no
-- charge is later than one window after the first, so each of them outlives its own window; a refund, which
-- could take the entry that would have expired, renews it too.
--
-- The member of a check's first unit is its id; the others have their number behind it, and come in chunks of 2000,
-- for Lua's stack holds no more than some 8000 arguments of a command.
local TRIM = 128 -- at most so many entries of each kind (expired, future) are dropped by one charge, and one a unit

algorithms.sliding_window = {
  -- Seen: the number of live entries.
  evaluate = function(hit, now)
    local used = call('ZCOUNT', hit.key, now - hit.window + 1, horizon)
    local remaining = hit.count - used
    if remaining < 0 then -- the count has been lowered
      remaining = 0
    end
    if hit.cost <= remaining then
      return remaining, 0, 0, used
    end
    if hit.cost > hit.count then
      return remaining, NEVER, 0, used
    end
    local last_to_leave = call('ZCOUNT', hit.key, '-inf', now - hit.window) + used + hit.cost - hit.count - 1
    local leaves_from = call('ZRANGE', hit.key, last_to_leave, last_to_leave, 'WITHSCORES')[2]
    return remaining, leaves_from + hit.window - now, 0, used
  end,

  charge = function(hit, now, used, id)
    call('ZADD', hit.key, stamp, id)
    for from = 2, hit.cost, 2000 do
      local entries = {}
      for n = from, math.min(from + 1999, hit.cost) do
        entries[#entries + 1] = stamp
        entries[#entries + 1] = id .. n
      end
      call('ZADD', hit.key, unpack(entries))
    end
    -- What lies outside the window.
    local dead = call('ZCARD', hit.key) - used - hit.cost
    if dead > TRIM + hit.cost then
      local future = call('ZCOUNT', hit.key, now + AHEAD + 1, '+inf')
      if future > 0 then
        call('ZREMRANGEBYRANK', hit.key, -math.min(future, TRIM + hit.cost), -1)
      end
      if dead > future then
        call('ZREMRANGEBYRANK', hit.key, 0, math.min(dead - future, TRIM + hit.cost) - 1)
      end
    elseif dead > 0 and call('ZREMRANGEBYSCORE', hit.key, '-inf', now - hit.window) < dead then
      call('ZREMRANGEBYSCORE', hit.key, now + AHEAD + 1, '+inf')
    end
    if dead > 0 or used == 0 then
      call('PEXPIRE', hit.key, 2 * hit.window / 1000 + grace)
    end
    return hit.window
  end,

  others = function()
    local others = others_of_log()
    others.refund = function(hit, until_, now, id)
      call('ZREM', hit.key, id)
      for from = 2, hit.cost, 2000 do
        local members = {}
        for n = from, math.min(from + 1999, hit.cost) do
          members[#members + 1] = id .. n
        end
        call('ZREM', hit.key, unpack(members))
      end
      call('PEXPIRE', hit.key, 2 * hit.window / 1000 + grace)
    end
    return others
  end,
}
