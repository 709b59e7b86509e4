-- Refund what one check has charged, exactly where the algorithm can.
--
-- KEYS[i]    key of hit i
-- ARGV       as in prelude.lua, and
-- ARGV[4+i]  the instant at which the quota of hit i would have been full again, according to the check's answer
for i, hit in ipairs(hits) do
  algorithms[hit.algorithm].others().refund(hit, tonumber(ARGV[4 + i]), now, ARGV[2])
end
