-- floor(n * a / b) and the rest, exact even if the product exceeds 2^53, beyond which doubles skip whole numbers:
-- long multiplication by 7 bits of n at a time. For whole n < 2^35, b < 2^45, and a result within 2^53; a may be below 0.
local function span(n, a, b)
  local product = n * a
  if math.abs(product) < 9007199254740992 then
    return math.floor(product / b), product % b
  end
  local whole, factor = math.floor(a / b), a % b
  local quotient, rest = 0, 0
  for shift = 28, 0, -7 do
    local sum = rest * 128 + factor * (math.floor(n / 2 ^ shift) % 128)
    quotient = quotient * 128 + math.floor(sum / b)
    rest = sum % b
  end
  return n * whole + quotient, rest
end
