// Colours by what they mean, the same on every dashboard. They are Okabe and Ito's, told apart by nearly all
// colour-blind people, on light and on dark.
{
  green: '#009E73',
  orange: '#E69F00',
  red: '#D55E00',
  blue: '#0072B2',
  sky: '#56B4E9',
  purple: '#CC79A7',
  yellow: '#F0E442',
  grey: '#8E8E8E',

  good: self.green,
  attention: self.orange,
  bad: self.red,
  neutral: self.sky,

  // Where GPU time and money go.
  busy: self.green,
  unused: self.orange,
  unmeasured: self.sky,
  unallocated: self.grey,
  unsliced: self.purple,
  unavailable: self.red,

  // In this order for series without a meaning of their own.
  series: [self.blue, self.orange, self.green, self.purple, self.sky, self.red, self.yellow, self.grey],
}
