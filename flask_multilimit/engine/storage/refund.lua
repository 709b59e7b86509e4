-- Take back what one check has charged, exactly, where its algorithm can.
--
-- KEYS[i]    key of hit i
-- ARGV[1]    nothing
-- ARGV[2]    now, as in check.lua
-- ARGV[3]    the hits packed, as in check.lua
-- ARGV[4]    id of the check, 16 bytes
-- ARGV[4+i]  the instant when the quota of hit i would have been whole again, as the check answered
local now = read_clock()
for i, hit in ipairs(read_hits()) do
  hit.algorithm.refund(hit, tonumber(ARGV[4 + i]), now, ARGV[4])
end
