-- The further fields of each ban, after all hits in ARGV[1], as doubles: time, factor, most, memory, how many hits it
-- watches, and the places of these.
for i = 1, #hits do
  local hit = hits[i]
  if hit.algorithm == 'ban' then
    local many
    hit.time, hit.factor, hit.most, hit.memory, many, position = struct.unpack('<ddddd', ARGV[1], position)
    hit.watches = {}
    for n = 1, many do
      hit.watches[n], position = struct.unpack('<d', ARGV[1], position)
    end
  end
end
