-- Sliding window counter: "<begin of the window> <units used> <units used in the one before>" under one key.
-- Twin of sliding_window_counter.py, which has the formula.
local function in_force(hit, now)
  local start, current, previous = load_numbers(hit.key)
  if not start or start > now + AHEAD or now >= start + 2 * hit.window then
    return now, 0, 0
  end
  if now >= start + hit.window then
    start, current, previous = start + hit.window, 0, current
  end
  if current == 0 and previous == 0 then
    -- After a settlement at 0 nothing counts any more: the next charge begins a new window.
    return now, 0, 0
  end
  return start, current, previous
end

-- How many of the `used` units of the window before still count, rounded up.
local function weigh(used, hit, elapsed)
  local whole, rest = span(used, hit.window - elapsed, hit.window)
  return rest > 0 and whole + 1 or whole
end

-- How far into a window, after one that used `used`, its weight has fallen to `room`.
local function elapsed_until(used, room, hit)
  return hit.window - (span(room, hit.window, used))
end

algorithms.sliding_window_counter = {
  -- Seen: the two windows in force at `now`.
  evaluate = function(hit, now)
    local start, current, previous = in_force(hit, now)
    local seen = { start, current, previous }
    local elapsed = now - start
    local remaining = hit.count - current - weigh(previous, hit, elapsed)
    if hit.cost <= remaining or hit.cost == 0 then
      return remaining, 0, 0, seen
    end
    if hit.cost > hit.count then
      return remaining, NEVER, 0, seen
    end
    local room = hit.count - current - hit.cost
    if room >= 0 then
      return remaining, elapsed_until(previous, room, hit) - elapsed, 0, seen
    end
    local wait = hit.window - elapsed + elapsed_until(current, hit.count - hit.cost, hit)
    return remaining, wait, 0, seen
  end,

  charge = function(hit, now, seen)
    local left = seen[1] + 2 * hit.window - now
    store_numbers(hit.key, left, seen[1], seen[2] + hit.cost, seen[3])
    return left
  end,

  others = function()
    return {
      reset_after = function(hit, now, seen)
        if seen[2] > 0 then
          return seen[1] + 2 * hit.window - now
        end
        return seen[3] > 0 and seen[1] + hit.window - now or 0
      end,

      drop_future = drop_future_numbers,

      -- Gives back while the window of the charge is the current one or the one before, and nothing after that.
      settle = function(hit, units, until_, now)
        if units > hit.cost then
          local start, current, previous = in_force(hit, now)
          current = math.min(current + units - hit.cost, MOST_USED)
          store_numbers(hit.key, start + 2 * hit.window - now, start, current, previous)
          return
        end
        local start, current, previous = load_numbers(hit.key)
        if not start or until_ <= now then
          return
        end
        local stop, back = start + 2 * hit.window, hit.cost - units
        if until_ == stop then
          current = math.max(current - back, 0)
        elseif until_ == stop - hit.window then
          previous = math.max(previous - back, 0)
        else
          return
        end
        store_numbers(hit.key, stop - now, start, current, previous)
      end,
    }
  end,
}
