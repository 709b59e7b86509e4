-- Take back what one check has charged, exactly, where its algorithm can.
--
-- KEYS[i]    key of hit i
-- ARGV[1]    nothing
-- ARGV[2]    id of the check, 16 bytes
-- ARGV[3]    now, as in check.lua
-- ARGV[3+i]  hit i packed, as in check.lua
-- and then   for each hit the instant when its quota would have been whole again, as the check answered
local now = read_clock()
for i, hit in ipairs(read_hits()) do
  hit.algorithm.refund(hit, tonumber(ARGV[3 + #KEYS + i]), now, ARGV[2])
end
