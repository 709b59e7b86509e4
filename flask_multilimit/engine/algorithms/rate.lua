-- What token bucket, leaky bucket and GCRA share: "<whole microseconds> <rest> <charged>" under one key, the instant
-- when all units will have come back, where the rest is counted in 1 / count of a microsecond; and the microsecond of the
-- last charge or settlement. Twin of rate.py.
--
-- Here a duration is a pair (whole, rest), because its product with count may exceed 2^53.
local function minus(hit, whole, rest, other_whole, other_rest)
  if rest < other_rest then
    return whole - other_whole - 1, rest + hit.count - other_rest
  end
  return whole - other_whole, rest - other_rest
end

local function plus(hit, whole, rest, other_whole, other_rest)
  if rest + other_rest >= hit.count then
    return whole + other_whole + 1, rest + other_rest - hit.count
  end
  return whole + other_whole, rest + other_rest
end

local function up(whole, rest)
  return rest > 0 and whole + 1 or whole
end

-- How far away the instant is: zero when it has passed, or is further away than burst intervals and AHEAD because the
-- clock has stepped back since the charge.
local function behind(hit, now)
  local whole, rest, charged = load_numbers(hit.key)
  if not whole or whole < now then
    return 0, 0
  end
  whole, rest = whole - now, math.min(rest, hit.count - 1)
  local most, most_rest = span(hit.burst, hit.window, hit.count)
  most = most + AHEAD
  if (whole > most or (whole == most and rest > most_rest)) and (charged or 0) > now + AHEAD then
    return 0, 0
  end
  return whole, rest
end

-- How many units take that long to come back, rounded down.
local function units(hit, whole, rest)
  local many, left = span(hit.count, whole, hit.window)
  return many + math.floor((left + rest) / hit.window)
end

local LONGEST_DEBT = 34560000000000 -- microseconds until the instant, at most: 400 days

local rate = {
  -- Seen: how far away the instant is.
  evaluate = function(hit, now)
    local whole, rest = behind(hit, now)
    local seen = { whole, rest }
    local slack, slack_rest = span(hit.burst, hit.window, hit.count)
    slack, slack_rest = minus(hit, slack, slack_rest, whole, rest)
    local remaining = units(hit, slack, slack_rest)
    if hit.cost <= remaining or hit.cost == 0 then
      return remaining, 0, 0, seen
    end
    if hit.cost > hit.burst then
      return remaining, NEVER, 0, seen
    end
    local need, need_rest = span(hit.cost, hit.window, hit.count)
    return remaining, up(minus(hit, need, need_rest, slack, slack_rest)), 0, seen
  end,

  charge = function(hit, now, seen)
    local whole, rest = plus(hit, seen[1], seen[2], span(hit.cost, hit.window, hit.count))
    local left = up(whole, rest)
    store_numbers(hit.key, left, now + whole, rest, now)
    return left
  end,

  others = function()
    return {
      reset_after = function(hit, now, seen)
        return up(seen[1], seen[2])
      end,

      drop_future = function(hit, now)
        local whole, rest = behind(hit, now)
        if whole == 0 and rest == 0 then
          call('DEL', hit.key)
        end
      end,

      -- Gives back the part of the charge that has not come back by itself: exactly if there were no other requests in
      -- between, and never more.
      settle = function(hit, units, until_, now)
        local whole, rest = behind(hit, now)
        if units > hit.cost then
          whole, rest = plus(hit, whole, rest, span(units - hit.cost, hit.window, hit.count))
          if whole >= LONGEST_DEBT then
            whole, rest = LONGEST_DEBT, 0
          end
        elseif units < hit.cost then
          local back, back_rest = span(hit.cost - units, hit.window, hit.count)
          if back >= until_ - now then
            back, back_rest = math.max(until_ - now, 0), 0
          end
          whole, rest = minus(hit, whole, rest, back, back_rest)
        end
        if whole < 0 or (whole == 0 and rest == 0) then
          call('DEL', hit.key)
          return
        end
        store_numbers(hit.key, up(whole, rest), now + whole, rest, now)
      end,
    }
  end,
}
