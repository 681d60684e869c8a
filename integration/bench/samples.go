package bench

import (
	"math"
	"slices"
	"time"
)

// percentile returns the nearest-rank percentile of samples, p from 0 to 100. samples isn't empty.
func percentile[S ~[]E, E time.Duration | float64](samples S, p float64) E {
	sorted := slices.Sorted(slices.Values(samples))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
