-- Hits that are settled later and have no estimate. Their packed cost is -1: they are evaluated with a cost of 1, and
-- not charged.
for _, hit in ipairs(hits) do
  if hit.cost < 0 then
    local by = algorithms[hit.algorithm]
    hit.cost, hit.algorithm = 0, 'open ' .. hit.algorithm
    algorithms[hit.algorithm] = {
      evaluate = function(asking, instant)
        asking.cost = 1
        local remaining, retry_after, delay, seen = by.evaluate(asking, instant)
        asking.cost = 0
        return remaining, retry_after, delay, seen
      end,
      others = by.others,
    }
  end
end
