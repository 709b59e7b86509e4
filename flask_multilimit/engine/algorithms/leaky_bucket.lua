-- Leaky bucket: the water is the time from now to the instant of rate.lua. Twin of leaky_bucket.py.
local METER = -1 -- in place of a max_delay

algorithms.leaky_bucket = {
  -- Seen as in rate.lua; rounded up to whole microseconds it is the delay. A check of cost 0 never waits.
  evaluate = function(hit, now)
    local remaining, retry_after, _, seen = rate.evaluate(hit, now)
    if hit.max_delay == METER then
      return remaining, retry_after, 0, seen
    end
    local delay = up(seen[1], seen[2])
    local places = 0
    if delay <= hit.max_delay then
      places = units(hit, minus(hit, hit.max_delay, 0, seen[1], seen[2])) + 1
    end
    remaining = math.min(remaining, places)
    if hit.cost == 0 or retry_after == NEVER then
      return remaining, retry_after, 0, seen
    end
    retry_after = math.max(retry_after, delay - hit.max_delay, 0)
    return remaining, retry_after, retry_after == 0 and delay or 0, seen
  end,
  charge = rate.charge,
  others = rate.others,
}
