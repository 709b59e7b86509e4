-- What sliding_window.lua and concurrency.lua share: a ZSET of entries, each scored by a microsecond s. An entry counts
-- at `now` while now - window < s <= now + AHEAD.

-- Whether the entry of a check still counts, as its charge does.
local function recognise_in_log(hit, now, id)
  local at = call('ZSCORE', hit.key, id)
  return at and tonumber(at) > now - hit.window
end
