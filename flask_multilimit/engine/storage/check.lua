-- One check, all or nothing: evaluate every hit at one instant, charge all of them only if all allow.
-- (A shadow hit refuses nothing; refusing by itself it is not charged itself.)
--
-- KEYS[i]  key of hit i
-- ARGV[1]  mode: "check"; "peek" charges nothing; "repeat" is a check whose reply may have been lost
-- ARGV[2]  now in microseconds for a test that rules time; "" in earnest: the server's own clock
-- ARGV[3]  the hits packed: window, count, cost, burst, max_delay, shadow as doubles, and the algorithm's name; of each
-- ARGV[4]  id of the check, 16 bytes
--
-- Replies with integers: now, delay, and for each hit remaining, retry_after, reset_after. Times are in
-- microseconds; a retry_after of 0 says the hit allows, NEVER that no waiting helps.
local mode, id = ARGV[1], ARGV[4]

-- The charges of a check are written together, so any hit that remembers its id speaks for all.
local function already_charged(hits, now)
  for _, hit in ipairs(hits) do
    if hit.cost > 0 and hit.algorithm.recognise and hit.algorithm.recognise(hit, now, id) then
      return true
    end
  end
end

local now = read_clock()
local hits = read_hits()
local repeated = mode == 'repeat' and already_charged(hits, now)
local reply = { now, 0, 0, 0, 0 }
local allowed = true

for i = 1, #hits do
  local hit = hits[i]
  local remaining, retry_after, delay, seen = hit.algorithm.evaluate(hit, now)
  if repeated then
    retry_after = 0
  end
  if not hit.shadow then
    allowed = allowed and retry_after == 0
    if delay > reply[2] then
      reply[2] = delay
    end
  end
  -- Until reset_after is known, what was seen has its place: a table less.
  reply[3 * i], reply[3 * i + 1], reply[3 * i + 2] = remaining, retry_after, seen
end

local charging = allowed and not repeated and mode ~= 'peek'
for i = 1, #hits do
  local hit, seen = hits[i], reply[3 * i + 2]
  if charging and hit.cost > 0 and reply[3 * i + 1] == 0 then
    reply[3 * i] = reply[3 * i] - hit.cost
    reply[3 * i + 2] = hit.algorithm.charge(hit, now, seen, id)
  else
    if mode ~= 'peek' and not repeated then
      hit.algorithm.drop_future(hit, now)
    end
    reply[3 * i + 2] = hit.algorithm.reset_after(hit, now, seen)
  end
end

return reply
