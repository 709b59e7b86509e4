-- The state of algorithms that keep two or three whole numbers: text under one key, readable with GET.
local function load_numbers(key)
  local text = call('GET', key)
  if text then
    local first, second, third = string.match(text, '^(%-?%d+) (%d+) ?(%d*)$')
    return tonumber(first), tonumber(second), tonumber(third)
  end
end

local MOST_USED = 10000000000 -- the most units that a counter holds, whatever was settled

-- For states whose first number is an instant: it lies far ahead only if the clock has stepped back.
local function drop_future_numbers(hit, now)
  local first = load_numbers(hit.key)
  if first and first > now + AHEAD then
    call('DEL', hit.key)
  end
end

-- `left` is how long the numbers matter, in microseconds.
local function store_numbers(key, left, first, second, third)
  local text = string.format('%.0f %.0f', first, second)
  if third then
    text = text .. string.format(' %.0f', third)
  end
  call('SET', key, text, 'PX', math.ceil(left / 1000) + grace)
end
