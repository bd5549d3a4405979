package supervised

import (
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// The demand doubles with misses, goes back in calm times, and ends in quiet ones, until the next request.
func TestDemand(t *testing.T) {
	now := time.Now()
	d := newDemand(6, now)
	after := func(step time.Duration, missed bool, want int) {
		t.Helper()
		now = now.Add(step)
		d.noteRequest(missed, now)
		if d.want != want {
			t.Errorf("after a request that missed: %t, %d are wanted, want %d", missed, d.want, want)
		}
	}
	rest := func(step time.Duration, want int) {
		t.Helper()
		now = now.Add(step)
		d.noteTime(now)
		if d.want != want {
			t.Errorf("after %s more, %d are wanted, want %d", step, d.want, want)
		}
	}
	after(time.Second, false, 1)
	after(time.Second, true, 2)
	after(time.Second, true, 4)
	after(time.Second, true, 6)
	after(time.Second, true, 6)
	rest(calmTime, 6)
	rest(time.Second, 5)
	rest(time.Second, 5)
	for want := 4; want > 1; want-- {
		after(calmTime, false, want+1)
		rest(time.Second, want)
	}
	rest(quietTime/2, 1)
	rest(quietTime/2, 0)
	after(time.Second, true, 1)
	if d := newDemand(0, now); d.want != 0 {
		t.Errorf("without a stock, %d are wanted", d.want)
	}
}

// Sandboxes boot when no Create is in progress or has just returned, or when the stock has been short for too long.
func TestPlanBoot(t *testing.T) {
	now := time.Now()
	past := now.Add(-time.Hour / 2)
	for name, one := range map[string]struct {
		stock *stock
		boots bool
	}{
		"at rest":                         {&stock{created: past}, true},
		"enough":                          {&stock{created: past, kinds: []*kind{{demand: demand{asked: now}}}}, false},
		"a Create":                        {&stock{created: past, creates: 1}, false},
		"just after a Create":             {&stock{created: now}, false},
		"a Create, and short for long":    {&stock{created: now, creates: 1, short: past}, true},
		"short for long, after a failure": {&stock{created: past, short: past, kinds: []*kind{{demand: newDemand(1, now), retry: now.Add(time.Minute)}}}, false},
	} {
		s := one.stock
		if s.kinds == nil {
			s.kinds = []*kind{newKind(atoll.Resources{}, newDemand(1, now))}
		}
		s.opts.Max = 1
		surplus, rest := s.planBoot()
		if (rest == 0) != one.boots || (s.booting != nil) != one.boots || len(surplus) > 0 || rest > time.Hour {
			t.Errorf("%s: rest %s, booting %v, want %t", name, rest, s.booting, one.boots)
		}
	}
}
