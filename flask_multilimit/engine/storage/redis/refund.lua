-- Take back what one check has charged, exactly, where its algorithm can.
--
-- KEYS[i]    key of hit i
-- ARGV       as in prelude.lua, and
-- ARGV[4+i]  the instant when the quota of hit i would have been full again, as the check answered
for i, hit in ipairs(hits) do
  algorithms[hit.algorithm].others().refund(hit, tonumber(ARGV[4 + i]), now, ARGV[2])
end
