-- The hits of a script that serves plans of every shape.
--
-- KEYS[i]  key of hit i
-- ARGV[1]  the hits, packed: of each, window, count, cost, burst, max_delay, shadow as doubles, and the algorithm's name
-- ARGV[2]  id of the check, 16 bytes
local hits, position = {}, 1
for i = 1, #KEYS do
  local window, count, cost, burst, max_delay, shadow, algorithm
  window, count, cost, burst, max_delay, shadow, algorithm, position = struct.unpack('<dddddds', ARGV[1], position)
  hits[i] = {
    key = KEYS[i],
    window = window,
    count = count,
    cost = cost,
    burst = burst,
    max_delay = max_delay,
    shadow = shadow == 1,
    algorithm = algorithm,
  }
end
