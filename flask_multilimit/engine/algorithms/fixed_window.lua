-- Fixed window counter: "<begin of the window> <units used>" under one key. Twin of fixed_window.py.
local function in_force(hit, now)
  local start, used = load_numbers(hit.key)
  if start and start <= now + AHEAD and now < start + hit.window then
    return start, used
  end
  return now, 0
end

algorithms.fixed_window = {
  -- Seen: the window in force at `now`, if necessary a new one.
  evaluate = function(hit, now)
    local start, used = in_force(hit, now)
    local remaining = hit.count - used
    local seen = { start, used }
    if hit.cost <= remaining or hit.cost == 0 then
      return remaining, 0, 0, seen
    end
    if hit.cost > hit.count then
      return remaining, NEVER, 0, seen
    end
    return remaining, start + hit.window - now, 0, seen
  end,

  charge = function(hit, now, seen)
    local left = seen[1] + hit.window - now
    store_numbers(hit.key, left, seen[1], seen[2] + hit.cost)
    return left
  end,

  others = function()
    return {
      reset_after = function(hit, now, seen)
        return seen[2] > 0 and seen[1] + hit.window - now or 0
      end,

      drop_future = drop_future_numbers,

      -- Gives back within the window of the charge, and nothing once that is over.
      settle = function(hit, units, until_, now)
        if units > hit.cost then
          local start, used = in_force(hit, now)
          store_numbers(hit.key, start + hit.window - now, start, math.min(used + units - hit.cost, MOST_USED))
          return
        end
        local start, used = load_numbers(hit.key)
        if not start or until_ <= now or until_ ~= start + hit.window then
          return
        end
        if used > hit.cost - units then
          store_numbers(hit.key, until_ - now, start, used - hit.cost + units)
        else
          call('DEL', hit.key)
        end
      end,
    }
  end,
}
