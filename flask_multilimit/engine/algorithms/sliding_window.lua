-- Sliding window log: a ZSET of check ids scored by the microsecond they were charged at.
-- A unit charged at s counts at `now` while now - window < s <= now. Twin of sliding_window.py.
--
-- The key's TTL is two windows, renewed when the key is new or an entry had expired. Between two renewals no
-- charge is later than one window after the first, so each of them outlives its own window; a refund, which
-- could take the entry that would have expired, renews it too.
local TRIM = 128 -- at most so many entries of each kind (expired, future) are dropped by one charge, and one a unit
local CHUNK = 2000 -- members in one command: Lua's stack holds no more than some 8000 arguments

-- The member of unit n: the check's id, and from the second unit on its number behind it.
local function member(id, n)
  if n == 1 then
    return id
  end
  return id .. n
end

local function in_chunks(cost, each)
  for from = 1, cost, CHUNK do
    each(from, math.min(from + CHUNK - 1, cost))
  end
end

local function add_many(hit, now, id)
  in_chunks(hit.cost, function(from, to)
    local pairs_ = {}
    for n = from, to do
      pairs_[#pairs_ + 1] = now
      pairs_[#pairs_ + 1] = member(id, n)
    end
    call('ZADD', hit.key, unpack(pairs_))
  end)
end

local function count_expired(hit, now)
  return call('ZCOUNT', hit.key, '-inf', now - hit.window)
end

local function score_at(key, rank)
  return tonumber(call('ZRANGE', key, rank, rank, 'WITHSCORES')[2])
end

local function drop_future(hit, now, most)
  local future = call('ZCOUNT', hit.key, now + 1, '+inf')
  if future > 0 then
    call('ZREMRANGEBYRANK', hit.key, -math.min(future, most), -1)
  end
  return future
end

-- `dead` entries lie outside the window: drop the expired ones from the front, the future ones from the end.
local function trim(hit, now, dead)
  local most = TRIM + hit.cost
  if dead <= most then
    local expired = call('ZREMRANGEBYSCORE', hit.key, '-inf', now - hit.window)
    if expired < dead then
      call('ZREMRANGEBYSCORE', hit.key, now + 1, '+inf')
    end
    return
  end
  local future = drop_future(hit, now, most)
  if dead > future then
    call('ZREMRANGEBYRANK', hit.key, 0, math.min(dead - future, most) - 1)
  end
end

algorithms.sliding_window = {
  -- Seen: the number of live entries.
  evaluate = function(hit, now)
    local used = call('ZCOUNT', hit.key, now - hit.window + 1, now)
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
    local last_to_leave = score_at(hit.key, count_expired(hit, now) + used + hit.cost - hit.count - 1)
    return remaining, last_to_leave + hit.window - now, 0, used
  end,

  charge = function(hit, now, used, id)
    if hit.cost == 1 then
      call('ZADD', hit.key, now, id)
    else
      add_many(hit, now, id)
    end
    local dead = call('ZCARD', hit.key) - used - hit.cost
    if dead > 0 then
      trim(hit, now, dead)
    end
    if dead > 0 or used == 0 then
      call('PEXPIRE', hit.key, time_to_live(2 * hit.window))
    end
    return hit.window
  end,

  reset_after = function(hit, now, used)
    if used == 0 then
      return 0
    end
    return score_at(hit.key, count_expired(hit, now) + used - 1) + hit.window - now
  end,

  drop_future = function(hit, now)
    drop_future(hit, now, TRIM)
  end,

  refund = function(hit, until_, now, id)
    in_chunks(hit.cost, function(from, to)
      local members = {}
      for n = from, to do
        members[#members + 1] = member(id, n)
      end
      call('ZREM', hit.key, unpack(members))
    end)
    call('PEXPIRE', hit.key, time_to_live(2 * hit.window))
  end,

  -- For as long as the charge counts.
  recognise = function(hit, now, id)
    local at = call('ZSCORE', hit.key, id)
    return at and tonumber(at) > now - hit.window
  end,
}
