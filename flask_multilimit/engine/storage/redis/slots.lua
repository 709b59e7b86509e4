-- Release slots, or let them count from now on: of any number of checks, in one command.
--
-- KEYS[i]  key of slot i
-- ARGV     as in prelude.lua, but
-- ARGV[2]  the ids of the checks that took them, 16 bytes each
-- ARGV[3]  "release" or "renew"
for i, hit in ipairs(hits) do
  local id, slots = string.sub(ARGV[2], 16 * i - 15, 16 * i), algorithms[hit.algorithm].others()
  if ARGV[3] == 'renew' then
    slots.renew(hit, now, id)
  else
    slots.refund(hit, 0, now, id)
  end
end
