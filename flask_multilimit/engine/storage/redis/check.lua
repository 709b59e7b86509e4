-- One check, all or nothing: evaluate every hit at one instant, charge all of them only if all allow.
-- (A shadow hit refuses nothing; refusing by itself it is not charged itself.)
--
-- KEYS[i]  key of hit i
-- ARGV     as in prelude.lua, and
-- ARGV[3]  mode: "peek" charges nothing; "repeat" is a check whose reply may have been lost; "" or nothing is a check
--
-- Replies with integers, as engine/reply.py says: now, allowed, delay, and for each hit remaining, retry_after,
-- reset_after. Times are in microseconds; a retry_after of 0 says the hit allows, NEVER that waiting does not help.
local id, mode = ARGV[2], ARGV[3]

-- The charges of a check are written together, so any hit that remembers its id speaks for all.
local repeated = false
if mode == 'repeat' then
  for _, hit in ipairs(hits) do
    local recognise = algorithms[hit.algorithm].others().recognise
    repeated = repeated or hit.cost > 0 and recognise and recognise(hit, now, id)
  end
end

local reply = { now, 1, 0, 0, 0, 0 }
local allowed = true
for i = 1, #hits do
  local hit = hits[i]
  local remaining, retry_after, delay, seen = algorithms[hit.algorithm].evaluate(hit, now)
  if repeated then
    retry_after = 0
  end
  if not hit.shadow then
    allowed = allowed and retry_after == 0
    if delay > reply[3] then
      reply[3] = delay
    end
  end
  -- Until reset_after is known, what was seen has its place: a table less.
  reply[3 * i + 1], reply[3 * i + 2], reply[3 * i + 3] = remaining, retry_after, seen
end

if not allowed then
  reply[2] = 0
end

local charging = allowed and not repeated and mode ~= 'peek'
local made
for i = 1, #hits do
  local hit, seen = hits[i], reply[3 * i + 3]
  local name = hit.algorithm
  if charging and hit.cost > 0 and reply[3 * i + 2] == 0 then
    reply[3 * i + 1] = reply[3 * i + 1] - hit.cost
    reply[3 * i + 3] = algorithms[name].charge(hit, now, seen, id)
  else
    made = made or {}
    made[name] = made[name] or algorithms[name].others()
    if mode ~= 'peek' and not repeated then
      made[name].drop_future(hit, now)
    end
    reply[3 * i + 3] = made[name].reset_after(hit, now, seen)
  end
end

return reply
