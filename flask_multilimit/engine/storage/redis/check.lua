-- One check, all or nothing: evaluate every hit at one instant, charge all of them only if all allow (finish.lua).
-- (A shadow hit never refuses the check; if it would have refused, it is not charged itself.)
--
-- KEYS, ARGV  as in hits.lua and prelude.lua, and
-- ARGV[3]     mode: "peek" charges nothing; "repeat" is a check whose reply may have been lost; a plain check has "" or
--             nothing
local id, mode = ARGV[2], ARGV[3]

-- The charges of a check are written together, so if any hit remembers its id, all were charged.
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
  -- Until reset_after is known, its place holds what was seen: this saves a table.
  reply[3 * i + 1], reply[3 * i + 2], reply[3 * i + 3] = remaining, retry_after, seen
end
