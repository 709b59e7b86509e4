-- Ban: a string under one key: when the ban began and its level as doubles, the id of the check that began it; then,
-- for each strike since, its instant as a double and the id of its check. Twin of ban.py.
--
-- Further fields of its hit: time, factor, most, memory, and watches, the places of the hits whose refusals are strikes.
local NO_BAN = -1 -- the level of a state without a ban
local MOST_LEVEL = 100 -- the largest level: further repetitions do not lengthen a ban

algorithms.ban = {
  -- Remaining: how many strikes are missing. While a ban holds: -2 * (level + 1), and one less in the answer to the
  -- check that began it. Seen: the state, the level, how long the level is remembered, how many strikes have left their
  -- window, how many there are in all, and how long any of this counts; `{}` for a state of the future.
  evaluate = function(hit, now)
    local state = call('GET', hit.key)
    if not state then
      return hit.count, 0, 0, false
    end
    local began, level = struct.unpack('<dd', state)
    local strikes = (#state - 32) / 24
    local latest = strikes > 0 and struct.unpack('<d', state, 24 * strikes + 9) or began
    if latest > now + AHEAD then
      return hit.count, 0, 0, {}
    end
    local left, remembered = 0, 0
    if level >= 0 then
      local length = hit.time
      for _ = 1, level do
        if length < hit.most then
          length = math.floor(length * hit.factor)
        end
      end
      left = began + math.min(length, hit.most) - now
      remembered = math.max(left + hit.memory, 0)
    end
    local past, after = 0, strikes
    while past < after do
      local middle = math.floor((past + after) / 2)
      if struct.unpack('<d', state, 24 * middle + 33) > now - hit.window then
        after = middle
      else
        past = middle + 1
      end
    end
    local whole = remembered
    if past < strikes then
      whole = math.max(whole, latest + hit.window - now)
    end
    if left > 0 then
      return -2 * (level + 1), left, 0, { state, level, remembered, past, strikes, whole }
    end
    if remembered == 0 then
      level = -1
    end
    return math.max(hit.count - (strikes - past), 0), 0, 0, { state, level, remembered, past, strikes, whole }
  end,

  -- An allowed check only drops a state of the future.
  charge = function(hit, now, seen)
    if not seen then
      return 0
    end
    if not seen[1] then
      call('DEL', hit.key)
    end
    return seen[6] or 0
  end,

  others = function()
    return {
      reset_after = function(hit, now, seen)
        return seen and seen[6] or 0
      end,

      drop_future = function(hit, now)
        local state = call('GET', hit.key)
        if state and struct.unpack('<d', state, #state > 32 and #state - 23 or 1) > now + AHEAD then
          call('DEL', hit.key)
        end
      end,

      -- Add a strike, unless a ban holds (`left`) or this check is a strike already. Then return what evaluate would.
      strike = function(hit, now, remaining, left, seen, id)
        local state, level, _, past, strikes = unpack(seen or {})
        if not state then
          level, past, strikes = NO_BAN, 0, 0
        end
        if left > 0 then
          if string.sub(state, 17, 32) == id then
            remaining = -2 * (level + 1) - 1
          end
          return remaining, left, seen
        end
        if state and string.find(state, id, 24 * past + 33, true) then
          return remaining, left, seen
        end
        local begins = strikes - past + 1 >= hit.count
        if begins then
          state = struct.pack('<dd', now, math.min(level + 1, MOST_LEVEL)) .. id
        else
          local at = past < strikes and math.max(now, (struct.unpack('<d', state, 24 * strikes + 9))) or now
          local head = level > NO_BAN and string.sub(state, 1, 32) or struct.pack('<dd', 0, NO_BAN) .. string.rep('\0', 16)
          state = head .. string.sub(state or '', 24 * past + 33) .. struct.pack('<d', at) .. id
        end
        call('SET', hit.key, state)
        remaining, left, _, seen = algorithms.ban.evaluate(hit, now)
        call('PEXPIRE', hit.key, math.ceil(seen[6] / 1000) + grace)
        return begins and remaining - 1 or remaining, left, seen
      end,
    }
  end,
}
