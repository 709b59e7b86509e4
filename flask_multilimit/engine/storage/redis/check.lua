-- One check, all or nothing: evaluate every hit at one instant, charge all of them only if all allow (finish.lua).
-- (A shadow hit refuses nothing; refusing by itself it is not charged itself.)
--
-- KEYS, ARGV  as in hits.lua and prelude.lua, and
-- ARGV[3]     mode: "peek" charges nothing; "repeat" is a check whose reply may have been lost; "" or nothing is a check
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
