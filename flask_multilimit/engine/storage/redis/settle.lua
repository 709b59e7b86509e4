-- Settle the charges of one check: change each to the real cost.
--
-- KEYS[i]      key of hit i, whose cost is what was charged
-- ARGV         as in prelude.lua and hits.lua, and
-- ARGV[3+2*i]  the instant at which the quota of hit i would have been full again, by the check's answer
-- ARGV[4+2*i]  the units at which hit i is settled; 0 is a refund
for i, hit in ipairs(hits) do
  algorithms[hit.algorithm].others().settle(hit, tonumber(ARGV[4 + 2 * i]), tonumber(ARGV[3 + 2 * i]), now, ARGV[2])
end
