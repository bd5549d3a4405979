package qemu

import (
	"strconv"
	"sync"
	"time"
)

// rdtsc reads this computer's time stamp counter.
func rdtsc() uint64

// clockParams tells an emulated kernel the frequency of its time stamp counter, which is this
// computer's own. The kernel would measure it with a timer that is emulated as well. If the host
// keeps it from that for too long, which happened in a third of all starts on a busy computer, the
// kernel gives up, has no timer, and waits for ever: the only timers of a microvm use that counter.
//
// The parameters also declare the counter reliable. The kernel would check it against ticks, of
// which it misses some and gets others too early, and use these ticks for the rest of its life: in
// a kernel that lost its CPU while it measured the length of a tick, ticks came 15 times too early,
// and all waits gave up.
func clockParams() []string {
	return []string{"tsc_early_khz=" + strconv.FormatUint(tscKHz(), 10), "tsc=reliable"}
}

// tscKHz returns the frequency of the counter in kHz.
var tscKHz = sync.OnceValue(func() uint64 {
	const apart = 20 * time.Millisecond
	t0, c0 := sampleTSC()
	time.Sleep(apart)
	t1, c1 := sampleTSC()
	return (c1 - c0) * uint64(time.Millisecond) / uint64(t1.Sub(t0))
})

// sampleTSC returns the value of the counter and its time: of several samples the shortest, which
// was not interrupted.
func sampleTSC() (at time.Time, count uint64) {
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
