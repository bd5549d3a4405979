package supervised

import "time"

// A demand says how many sandboxes should be booted ahead of need. The number doubles with each request that finds none, and
// goes back in steps. After an hour without a request it is 0, until the next one.
type demand struct {
	most, want int
	asked      time.Time // the last request
	missed     time.Time // the last request that found none, or the last step back
}

const (
	quietTime = time.Hour        // without requests, after which no sandbox is wanted
	calmTime  = 10 * time.Minute // without misses, after which one less is wanted
)

// newDemand returns a demand of one sandbox, if most is not 0.
func newDemand(most int, now time.Time) demand {
	return demand{most: most, want: min(1, most), asked: now, missed: now}
}

// noteRequest adapts the demand to a request. missed says that it found none.
func (d *demand) noteRequest(missed bool, now time.Time) {
	d.asked = now
	if missed {
		d.missed = now
		d.want = max(1, min(2*d.want, d.most))
	}
}

// noteTime adapts the demand to the time without requests.
func (d *demand) noteTime(now time.Time) {
	switch {
	case now.Sub(d.asked) > quietTime:
		d.want = 0
	case d.want > 1 && now.Sub(d.missed) > calmTime:
		d.want, d.missed = d.want-1, now
	}
}
