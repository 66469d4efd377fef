// Driver errors that only hardware, or a driver that has failed, causes: for sources that tell no incidents. The same
// as in gpufleet's own catalogue, which a test compares.
{
  // The GPU or its node must get no work.
  fatal: '46|48|54|62|64|74|79|95|110|119|120|136|140|143|150|151|158|167|169|172|173|175',
  // It works on, but has to be reset when there is time, or lost the work that hit the error.
  degraded: '57|58|63|90|94|149|156|171',
}
