-- Between the halves of a check: a refusal is a strike of each ban that watches it.
--
-- The mode "refused" is for one part of a check if another part refuses: like "peek", it charges nothing, but a refusal
-- is a strike.
if not repeated and mode ~= 'peek' then
  for i = 1, #hits do
    local hit, struck = hits[i], false
    for _, place in ipairs(hit.watches or {}) do
      struck = struck or reply[3 * place + 2] ~= 0
    end
    if struck then
      reply[3 * i + 1], reply[3 * i + 2], reply[3 * i + 3] =
        algorithms.ban.others().strike(hit, now, reply[3 * i + 1], reply[3 * i + 2], reply[3 * i + 3], id)
    end
  end
end
if mode == 'refused' then
  mode = 'peek'
end
