-- Renew slots that are still in use: they count from now on, even if they were gone.
--
-- KEYS[i]  key of slot i
-- ARGV     as in prelude.lua and hits.lua, but
-- ARGV[2]  the ids of the checks that took them, 16 bytes each
for i, hit in ipairs(hits) do
  algorithms[hit.algorithm].others().renew(hit, now, string.sub(ARGV[2], 16 * i - 15, 16 * i))
end
