package qemu

import (
	"strconv"
	"sync"
	"time"
)

// rdtsc reads this machine's time stamp counter.
func rdtsc() uint64

// clock tells an emulated kernel how fast its time stamp counter is, which is this
// machine's own. It would find out beside a timer that is emulated as well, give up if
// it is kept from that for too long, which happened in a third of all starts on a busy
// machine, and then have no timer at all: microvm's have but those that go by that
// counter, and the kernel waits for ever.
//
// It is told that the counter is right, too. It would make sure by counting ticks, of which
// it misses some and has others too early, and go by these ticks for the rest of its life:
// in one that was kept from its CPU as it found out how long a tick is, they came 15 times
// too early, and all that waits for something gave up.
func clock() []string {
	return []string{"tsc_early_khz=" + strconv.FormatUint(khz(), 10), "tsc=reliable"}
}

// khz is how many thousands of times a second the counter counts.
var khz = sync.OnceValue(func() uint64 {
	const apart = 20 * time.Millisecond
	t0, c0 := counted()
	time.Sleep(apart)
	t1, c1 := counted()
	return (c1 - c0) * uint64(time.Millisecond) / uint64(t1.Sub(t0))
})

// counted is what the counter says at a time: of several looks the one that took the
// least, and so was not interrupted.
func counted() (at time.Time, count uint64) {
	least := time.Duration(1<<63 - 1)
	for range 10 {
		before := time.Now()
		c := rdtsc()
		if took := time.Since(before); took < least {
			least, at, count = took, before, c
		}
	}
	return at, count
}
