-- What only bans have besides, behind all hits in ARGV[1]: time, factor, most, memory, how many hits they watch, and the
-- places of these, as doubles; of each ban.
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
