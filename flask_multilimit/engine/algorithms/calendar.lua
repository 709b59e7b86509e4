-- Calendar: "<begin of the latest period> <units used in it> <units used in the period before>" under one key.
-- Twin of calendar.py, which says why. A hit also has the boundaries around now (calendars.lua): `earlier`, `begin`,
-- `finish` and `after`.
local LINGERS = 3600000000 -- microseconds that a key outlives its period, in case the clock steps back

local function in_force(hit)
  local start, used, before = load_numbers(hit.key)
  if not start or start < hit.earlier or 2 * start >= hit.finish + hit.after then
    return hit.begin, 0, 0
  end
  if 2 * start < hit.earlier + hit.begin then
    return hit.begin, 0, used
  end
  return 2 * start < hit.begin + hit.finish and hit.begin or hit.finish, used, before
end

-- Keep `units` more (below 0: fewer) in the latest period, or if `is_before`, in the one before.
local function add(hit, now, start, used, before, units, is_before)
  local finish = start < hit.finish and hit.finish or hit.after
  if is_before then
    before = math.min(math.max(before + units, 0), MOST_USED)
  else
    used = math.min(math.max(used + units, 0), MOST_USED)
  end
  if used == 0 and before == 0 then
    call('DEL', hit.key)
  else
    store_numbers(hit.key, finish + LINGERS - now, start, used, before)
  end
end

algorithms.calendar = {
  -- Seen: the state in force at `now`.
  evaluate = function(hit, now)
    local start, used, before = in_force(hit)
    local seen = { start, used, before }
    local remaining = hit.count - (start < hit.finish and used or before)
    if hit.cost <= remaining or hit.cost == 0 then
      return remaining, 0, 0, seen
    end
    if hit.cost > hit.count then
      return remaining, NEVER, 0, seen
    end
    if start >= hit.finish and used + hit.cost > hit.count then
      return remaining, hit.after - now, 0, seen
    end
    return remaining, hit.finish - now, 0, seen
  end,

  charge = function(hit, now, seen)
    add(hit, now, seen[1], seen[2], seen[3], hit.cost, seen[1] >= hit.finish)
    return hit.finish - now
  end,

  others = function()
    return {
      reset_after = function(hit, now, seen)
        return (seen[1] >= hit.finish or seen[2] > 0) and hit.finish - now or 0
      end,

      drop_future = function(hit)
        local start = load_numbers(hit.key)
        if start and start >= hit.after then
          call('DEL', hit.key)
        end
      end,

      -- Gives back within the period of the charge, and nothing once that is over.
      settle = function(hit, units, until_, now)
        local start, used, before = in_force(hit)
        local is_next = start >= hit.finish
        if units > hit.cost or until_ == hit.finish then
          add(hit, now, start, used, before, units - hit.cost, is_next)
        elseif is_next and until_ == hit.after then
          add(hit, now, start, used, before, units - hit.cost, false)
        end
      end,
    }
  end,
}
