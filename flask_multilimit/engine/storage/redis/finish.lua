-- The second half of a check: charge what may be charged, and complete the reply.
--
-- Replies with integers, as engine/reply.py says: now, allowed, delay, and for each hit remaining, retry_after,
-- reset_after. Times are in microseconds; a retry_after of 0 says the hit allows, NEVER that waiting does not help.
if not allowed then
  reply[2] = 0
end

local charging = allowed and not repeated and mode ~= 'peek'
stamp = string.format(whole, now)
local made
for i = 1, #hits do
  local hit, seen = hits[i], reply[3 * i + 3]
  local name = hit.algorithm
  if charging and hit.cost > 0 and reply[3 * i + 2] == 0 then
    reply[3 * i + 1] = reply[3 * i + 1] - hit.cost
    reply[3 * i + 3] = algorithms[name].charge(hit, now, seen, id)
    if reply[3 * i + 1] == 0 and (name == 'sliding_window' or name == 'sliding_window_counter') then
      hit.cost = 1
      local _, next_after = algorithms[name].evaluate(hit, now)
      reply[3 * i + 1] = -next_after
    end
  else
    made = made or {}
    made[name] = made[name] or algorithms[name].others()
    if mode ~= 'peek' and not repeated then
      made[name].drop_future(hit, now, seen)
    end
    reply[3 * i + 3] = made[name].reset_after(hit, now, seen)
  end
end

return reply
