-- The boundaries around now of each calendar, in the last argument: six doubles, ascending.
--
-- If now is not in one of the three periods in the middle, the reply is only now, and nothing is charged: the caller asks
-- again, with the boundaries around that instant.
local boundaries, place = ARGV[#ARGV], 1
for i = 1, #hits do
  local hit = hits[i]
  if hit.algorithm == 'calendar' then
    local bounds = { struct.unpack('<dddddd', boundaries, place) }
    place = bounds[7]
    for n = 2, 4 do
      if now >= bounds[n] and now < bounds[n + 1] then
        hit.earlier, hit.begin, hit.finish, hit.after = bounds[n - 1], bounds[n], bounds[n + 1], bounds[n + 2]
      end
    end
    if not hit.begin then
      return { now }
    end
  end
end
