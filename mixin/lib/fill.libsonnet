// fill('%s > %s', [a, b]): text with values put in, as the operator % does it. That one is written in jsonnet and reads
// its template letter by letter: it takes a hundred times as long, and there are hundreds of expressions.
// A value is a text or a number; %s stands for either.
local text(value) =
  if std.isString(value) then value
  else if value < 0 then '-' + text(-value)
  else
    // Six digits behind the point: as it stands, 0.07 would be 0.070000000000000007.
    local millionths = std.floor(value * 1e6 + 0.5);
    local whole = std.floor(millionths / 1e6);
    local digits = std.substr('' + (1e6 + millionths - 1e6 * whole), 1, 6);
    local strip(n) = if std.substr(digits, n - 1, 1) == '0' then strip(n - 1) else std.substr(digits, 0, n);
    if digits == '000000' then '' + whole else whole + '.' + strip(6);

function(template, values)
  local all = if std.isArray(values) then values else [values];
  // What is between the places, as JSON: native functions do all of it.
  local escaped = std.strReplace(std.strReplace(std.strReplace(template, '\\', '\\\\'), '"', '\\"'), '\n', '\\n');
  local pieces = std.parseJson('["' + std.strReplace(escaped, '%s', '","') + '"]');
  assert std.length(pieces) == std.length(all) + 1 : template + ': as many values as places';
  pieces[0] + std.join('', [text(all[i]) + pieces[i + 1] for i in std.range(0, std.length(all) - 1)])
