// How a source says where a reading comes from: the names of its series and what makes its unit ours.
{
  // A value that is sampled: `scale` is appended to bring it to the vocabulary's unit, as in ' / 100'.
  gauge(name, fixed=[], scale=''):: { gauge: name, counter: null, fixed: fixed, scale: scale },
  // A counter. Of readings it gives the rate, of errors the events.
  counter(name, fixed=[], scale=''):: { gauge: null, counter: name, fixed: fixed, scale: scale },
  // The sum of two counters that a source counts apart.
  sum(one, other):: local entry = self; entry.counter(one) { plus: entry.counter(other) },
  // A value with its time integral: the mean over a window is exact, taken from the counter.
  integrated(gauge, counter, fixed=[]):: { gauge: gauge, counter: counter, fixed: fixed, scale: '' },
}
